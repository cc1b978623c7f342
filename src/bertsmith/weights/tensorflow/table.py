"""The sorted table of LevelDB, in which TensorFlow keeps a checkpoint's index.

Blocks of entries, each with a checksum; an index block that says where they are; a footer that says where that is.
https://github.com/google/leveldb/blob/main/doc/table_format.md
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bertsmith.weights.tensorflow.crc32c import masked_crc32c
from bertsmith.weights.tensorflow.snappy import unpacked
from bertsmith.weights.tensorflow.wire import varint

_MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
_FOOTER, _TRAILER = 48, 5
_AS_IS, _SNAPPY = 0, 1


def is_table(tail: bytes) -> bool:
    """Whether a file that ends with these bytes is a table."""
    return tail.endswith(_MAGIC)


def entries(table: bytes) -> dict[bytes, bytes]:
    """Every key of a table with its value, in their order. Raises ValueError where a byte of it is damaged."""
    if len(table) < _FOOTER or not is_table(table):
        raise ValueError("it does not end as a table does")
    footer = table[-_FOOTER:]
    about, at = _handle(footer, 0)
    index, at = _handle(footer, at)
    if any(footer[at : -len(_MAGIC)]):
        raise ValueError("its footer is damaged")
    _block(table, *about)
    found: dict[bytes, bytes] = {}
    previous = None
    for _, value in _entries(_block(table, *index)):
        handle, _ = _handle(value, 0)
        for key, held in _entries(_block(table, *handle)):
            if previous is not None and key <= previous:
                raise ValueError("its keys are out of order")
            found[key] = held
            previous = key
    return found


def _handle(data: bytes, at: int) -> tuple[tuple[int, int], int]:
    """Where a block begins and how long it is; and the byte behind that."""
    offset, at = varint(data, at)
    size, at = varint(data, at)
    return (offset, size), at


def _block(table: bytes, offset: int, size: int) -> bytes:
    """A block's bytes, compared with their checksum and unpacked."""
    stored = table[offset : offset + size + _TRAILER]
    if len(stored) < size + _TRAILER:
        raise ValueError(f"the block at byte {offset:,} is cut off")
    checked, kind = np.frombuffer(stored[: size + 1], np.uint8), stored[size]
    if masked_crc32c(checked) != int.from_bytes(stored[size + 1 :], "little"):
        raise ValueError(f"the block at byte {offset:,} is not what its checksum says")
    if kind == _SNAPPY:
        return unpacked(stored[:size])
    if kind != _AS_IS:
        raise ValueError(f"the block at byte {offset:,} is packed in way {kind}, which is neither none nor Snappy")
    return stored[:size]


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The keys and values of a block. A key stands without the bytes that it shares with the one before."""
    restarts = int.from_bytes(block[-4:], "little")
    end = len(block) - 4 * (restarts + 1)
    if end < 0:
        raise ValueError("a block has no end")
    key, at = b"", 0
    while at < end:
        shared, at = varint(block, at)
        own, at = varint(block, at)
        length, at = varint(block, at)
        if shared > len(key) or at + own + length > end:
            raise ValueError("an entry reaches past its block")
        key = key[:shared] + block[at : at + own]
        at += own
        yield key, block[at : at + length]
        at += length
