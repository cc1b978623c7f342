"""Varints and protocol-buffer messages, as far as TensorFlow's checkpoints need them.

https://protobuf.dev/programming-guides/encoding
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number at byte `at`, and the byte behind it. Raises ValueError where it has no end or ends in zeros."""
    number = 0
    for place, byte in enumerate(data[at : at + _LONGEST_VARINT]):
        number |= (byte & 127) << 7 * place
        if byte < 128:
            if place and not byte:  # a footer has no checksum: a flipped bit may draw the zeros behind into its number
                raise ValueError("a number is longer than need be")
            return number, at + place + 1
    raise ValueError("a number has no end")


def fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Each field of a message as (its number, its value): a number without sign, or bytes.

    Raises ValueError for what is no message.
    """
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        number, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            value, at = varint(message, at)
            yield number, value
            continue
        if kind == _BYTES:
            length, at = varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        part, at = message[at : at + length], at + length
        if len(part) < length:
            raise ValueError("a field is cut off")
        yield number, part if kind == _BYTES else int.from_bytes(part, "little")
