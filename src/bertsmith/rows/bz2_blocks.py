"""A bz2 file read from anywhere in it: its blocks begin with a mark that can be searched for, and each unpacks alone.

Blocks hold at most 900 kB and lie at any bit, not only at whole bytes. Streams that follow each other (multistream
dumps, the output of parallel packers) are no special case, and a damaged block costs that block alone.
"""

from __future__ import annotations

import bz2
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, NamedTuple

# The 48 bits that a block begins with, and those that stand where a stream has no further block.
_BLOCK, _END = 0x314159265359, 0x177245385090
_MARK_BITS, _CHECK_BITS = 48, 32
_READ_BYTES = 1 << 20
# No block is longer packed: 900 kB that do not compress, with the tables of their codes.
_MOST_BITS = 8 * 1_500_000
# Chance writes the mark into a block once in some hundred terabytes; a block then goes on behind it.
_MOST_FALSE_MARKS = 2


@dataclass(frozen=True)
class Block:
    """One block. byte: where its mark begins in the file. data: what it holds, or None where it is damaged."""

    byte: int
    data: bytes | None


class _Mark(NamedTuple):
    """kind: _BLOCK or _END."""

    bit: int
    kind: int


def blocks_from(file: IO[bytes], begin: int) -> Iterator[Block]:
    """The blocks of a bz2 file whose mark begins at byte `begin` or later, to the end of the file, in order.

    So the blocks of adjoining ranges of bytes are those of the whole. One that fails its checksum, or is cut short by
    the end of the file, comes without data.
    """
    marks = _marks(file, begin)
    waiting: list[_Mark] = []

    def ahead(index: int) -> _Mark | None:
        while len(waiting) <= index and (mark := next(marks, None)):
            waiting.append(mark)
        return waiting[index] if index < len(waiting) else None

    while first := ahead(0):
        used, data = 1, None
        if first.kind == _BLOCK:
            for more in range(1, _MOST_FALSE_MARKS + 2):
                following = ahead(more)
                if following is None or following.bit - first.bit > _MOST_BITS:
                    break
                data = _unpack(file, first.bit, following.bit)
                if data is not None:
                    used = more
                    break
            yield Block(first.bit // 8, data)
        del waiting[:used]


def _marks(file: IO[bytes], begin: int) -> Iterator[_Mark]:
    """Every mark that begins at byte `begin` or later, in order."""
    searched = [(mark, shift, *_search(mark, shift)) for mark in (_BLOCK, _END) for shift in range(8)]
    position, kept = begin, b""
    while True:
        file.seek(position + len(kept))
        fresh = file.read(_READ_BYTES)
        window = kept + fresh
        found = []
        for mark, shift, inner, lead, mask, whole in searched:
            at = window.find(inner, lead)
            while at >= 0:
                chunk = window[at - lead : at - lead + 7].ljust(7, b"\0")
                if int.from_bytes(chunk) & mask == whole and at - lead + 7 <= len(window) + (shift == 0):
                    found.append(_Mark(8 * (position + at - lead) + shift, mark))
                at = window.find(inner, at + 1)
        # A mark is found in the window that it begins in, unless it reaches past the window's end.
        edge = len(window) - 6 if fresh else len(window)
        yield from sorted(each for each in found if each.bit < 8 * (position + edge))
        if not fresh:
            return
        kept, position = window[max(edge, 0) :], position + max(edge, 0)


def _search(mark: int, shift: int) -> tuple[bytes, int, int, int]:
    """What to look for: the whole bytes within a mark, the bytes before them, and mask and value of all 7 bytes."""
    whole, mask = mark << (8 - shift), ((1 << _MARK_BITS) - 1) << (8 - shift)
    lead = 1 if shift else 0
    return whole.to_bytes(7)[lead:6], lead, mask, whole


def _unpack(file: IO[bytes], first_bit: int, last_bit: int) -> bytes | None:
    """What the block between two bits holds, or None where it is damaged: it is made a stream of its own."""
    file.seek(first_bit // 8)
    raw = file.read(-(-last_bit // 8) - first_bit // 8)
    bits = last_bit - first_bit
    value = (int.from_bytes(raw) >> (-last_bit % 8)) & ((1 << bits) - 1)
    check = value >> (bits - _MARK_BITS - _CHECK_BITS) & ((1 << _CHECK_BITS) - 1)
    # A stream of one block has that block's checksum.
    value = (value << _MARK_BITS | _END) << _CHECK_BITS | check
    bits += _MARK_BITS + _CHECK_BITS
    stream = b"BZh9" + (value << (-bits % 8)).to_bytes(-(-bits // 8))
    unpacker = bz2.BZ2Decompressor()
    try:
        data = unpacker.decompress(stream)
    except OSError:
        return None
    return data if unpacker.eof else None
