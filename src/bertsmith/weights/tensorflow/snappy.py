"""Unpacking Snappy, with which a table's blocks may be packed.

https://github.com/google/snappy/blob/main/format_description.txt
"""

from __future__ import annotations

from bertsmith.weights.tensorflow.wire import varint

_LONGEST = 1 << 28


def unpacked(data: bytes) -> bytes:
    """The bytes that were packed into `data`. Raises ValueError where it is damaged."""
    length, at = varint(data, 0)
    if length > _LONGEST:
        raise ValueError(f"a packed block claims {length:,} bytes")
    out = bytearray()
    while at < len(data):
        tag = data[at]
        at += 1
        at = _copy(data, at, tag, out) if tag & 3 else _literal(data, at, tag >> 2, out)
        if len(out) > length:
            break
    if len(out) != length:
        raise ValueError(f"a packed block has {len(out):,} bytes and claims {length:,}")
    return bytes(out)


def _literal(data: bytes, at: int, length: int, out: bytearray) -> int:
    """Bytes as they are; lengths past 60 stand in the 1 to 4 bytes that follow. Returns the byte behind them."""
    if length >= 60:
        width = length - 59
        length = int.from_bytes(data[at : at + width], "little")
        at += width
    end = at + length + 1
    if end > len(data):
        raise ValueError("a packed block is cut off")
    out += data[at:end]
    return end


def _copy(data: bytes, at: int, tag: int, out: bytearray) -> int:
    """Bytes that stood earlier; the copy may overlap what it makes. Returns the byte behind it."""
    width = (1, 2, 4)[(tag & 3) - 1]
    offset = int.from_bytes(data[at : at + width], "little")
    length = (tag >> 2) + 1
    if width == 1:
        length = (tag >> 2 & 7) + 4
        offset |= tag >> 5 << 8
    if at + width > len(data) or not 0 < offset <= len(out):
        raise ValueError("a packed block copies from nowhere")
    run = bytes(out[len(out) - offset :][:length])
    out += (run * (length // len(run) + 1))[:length]
    return at + width
