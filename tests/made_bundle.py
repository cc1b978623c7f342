"""Writes TensorFlow checkpoints of the V2 format from its description, sharing nothing with what reads them.

The checksum goes bit by bit, keys share prefixes within restart intervals, the index may have many blocks, packed or
not, and tensors may lie in several files.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

FLOAT, DOUBLE, INT32, INT64, BFLOAT16, HALF = 1, 2, 3, 9, 14, 19
MAGIC = bytes.fromhex("57fb808b247547db")


@dataclass
class Style:
    """How a checkpoint is written. header: more bytes of the header's message."""

    shards: int = 1
    block_bytes: int = 4096
    restart_interval: int = 16
    snappy: bool = False
    magic: bytes = MAGIC
    header: bytes = b""
    dtypes: Mapping[str, int] = field(default_factory=dict)


def bitwise_crc32c(data: bytes) -> int:
    """CRC-32C as its definition has it: one bit after the other."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    crc = bitwise_crc32c(data)
    rotated = ((crc >> 15) | ((crc & 0x7FFF) << 17)) & 0xFFFFFFFF
    return (rotated + 0xA282EAD8) % 2**32


def write_bundle(prefix: Path, tensors: Mapping[str, np.ndarray], style: Style | None = None) -> None:
    """Writes PREFIX.index and PREFIX.data-...; tensors go round the shards in the order of their names.

    A tensor of uint16 whose type `style.dtypes` names is written as bfloat16.
    """
    style = style or Style()
    shards = [bytearray() for _ in range(style.shards)]
    kinds = {"float32": FLOAT, "float64": DOUBLE, "int32": INT32, "int64": INT64, "float16": HALF}
    header = _number(1, style.shards) + _bytes(3, _number(1, 1)) + style.header
    rows = [(b"", header)]
    for position, name in enumerate(sorted(tensors)):
        values = tensors[name]
        shard, raw = position % style.shards, values.tobytes()
        shape = b"".join(_bytes(2, _number(1, size)) for size in values.shape)
        kind = style.dtypes.get(name) or kinds[str(values.dtype)]
        entry = _number(1, kind) + _bytes(2, shape) + _number(3, shard) + _number(4, len(shards[shard]))
        entry += _number(5, len(raw)) + _tag(6, 5) + struct.pack("<I", masked(raw))
        rows.append((name.encode(), entry))
        shards[shard] += raw
    prefix.parent.mkdir(parents=True, exist_ok=True)
    for number, content in enumerate(shards):
        prefix.with_name(f"{prefix.name}.data-{number:05d}-of-{style.shards:05d}").write_bytes(content)
    prefix.with_name(f"{prefix.name}.index").write_bytes(table(rows, style))


def table(rows: list[tuple[bytes, bytes]], style: Style) -> bytes:
    """A sorted table of these rows."""
    out, handles, held = bytearray(), [], []
    for number, row in enumerate(rows):
        held.append(row)
        full = sum(len(key) + len(value) for key, value in held) >= style.block_bytes
        if full or number == len(rows) - 1:
            handles.append((held[-1][0], _put(out, _block(held, style.restart_interval), style.snappy)))
            held = []
    meta = _put(out, _block([], 1), style.snappy)
    index = _put(out, _block(handles, 1), style.snappy)
    return bytes(out) + (meta + index).ljust(40, b"\0") + style.magic


def pack_snappy(data: bytes) -> bytes:
    """Packs with literals of up to 70 bytes and a copy wherever the last four bytes stood before."""
    out, at, literal = bytearray(_varint(len(data))), 0, bytearray()
    while at < len(data):
        start = data.rfind(data[at : at + 4], 0, at + 3) if at + 4 <= len(data) else -1
        if start < 0:
            literal.append(data[at])
            at += 1
            if len(literal) == 70:
                out += _literal(literal)
            continue
        length = 4
        while length < 64 and at + length < len(data) and data[start + length] == data[at + length]:
            length += 1
        out += _literal(literal) + _copy(at - start, length)
        at += length
    return bytes(out + _literal(literal))


def _literal(run: bytearray) -> bytes:
    """The run as a literal; empties it."""
    length, content = len(run) - 1, bytes(run)
    run.clear()
    if not content:
        return b""
    head = bytes([length << 2]) if length < 60 else bytes([60 << 2, length])
    return head + content


def _copy(offset: int, length: int) -> bytes:
    if offset < 2048 and 4 <= length <= 11:
        return bytes([1 | (length - 4) << 2 | (offset >> 8) << 5, offset & 255])
    if offset < 65536:
        return bytes([2 | (length - 1) << 2]) + struct.pack("<H", offset)
    return bytes([3 | (length - 1) << 2]) + struct.pack("<I", offset)


def _block(rows: list[tuple[bytes, bytes]], interval: int) -> bytes:
    out, restarts, previous = bytearray(), [], b""
    for number, (key, value) in enumerate(rows):
        shared = 0
        if number % interval == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(previous)) and key[shared] == previous[shared]:
                shared += 1
        out += _varint(shared) + _varint(len(key) - shared) + _varint(len(value)) + key[shared:] + value
        previous = key
    restarts = restarts or [0]
    return bytes(out) + b"".join(struct.pack("<I", each) for each in [*restarts, len(restarts)])


def _put(out: bytearray, block: bytes, snappy: bool) -> bytes:
    """Appends a block with its trailer and returns its handle."""
    stored, kind = (pack_snappy(block), b"\1") if snappy else (block, b"\0")
    handle = _varint(len(out)) + _varint(len(stored))
    out += stored + kind + struct.pack("<I", masked(stored + kind))
    return handle


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(128 | number & 127)
        number >>= 7
    return bytes([*out, number])


def _tag(number: int, kind: int) -> bytes:
    return _varint(number << 3 | kind)


def _number(number: int, value: int) -> bytes:
    """A field of a message; like TensorFlow, without those that are 0."""
    return _tag(number, 0) + _varint(value) if value else b""


def _bytes(number: int, value: bytes) -> bytes:
    return _tag(number, 2) + _varint(len(value)) + value
