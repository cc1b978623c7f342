"""Hashes of n-grams of words, for whole batches of texts at once, whatever case, punctuation and spacing they have.

A word is a run of letters, marks and digits, or one ideograph, as BERT's pre-tokenizer has it; everything between words
is equal. Case is folded character by character. All of it is arithmetic on arrays: some 25 ns a character, and 40 bytes
a word while it is worked on.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from bertsmith.base import streams
from bertsmith.base.streams import UInt64s

Ints = NDArray[np.int64]

_CODE_POINTS = 0x110000
# Characters that are worked on at once: their arrays stay in the processor's cache.
_BLOCK = 1 << 14
# Odd, so that its powers have inverses modulo 2**64.
_BASE = 0x9E3779B97F4A7C15
_IN_WORDS = ("L", "M", "N")
# What BERT's pre-tokenizer takes for a word of its own.
_IDEOGRAPHS = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
_FIRST_IDEOGRAPH = 0x3400
_PARTING = "\n"


@dataclass(frozen=True)
class Words:
    """W words of several texts, one after the other.

    text: the texts joined. hashes: uint64[W]. starts, ends: int64[W], characters of `text`. texts: int64[W], which text
    a word stands in.
    """

    text: str
    hashes: UInt64s
    starts: Ints
    ends: Ints
    texts: Ints

    def ngrams(self, size: int) -> tuple[UInt64s, Ints]:
        """uint64[G], a hash of every `size` words in a row of one text, and int64[G], the number of its first word."""
        count = max(len(self.hashes) - size + 1, 0)
        first = np.flatnonzero(self.texts[:count] == self.texts[size - 1 : size - 1 + count])
        with np.errstate(over="ignore"):
            found = np.zeros(count, np.uint64)
            for place in range(size):
                found *= np.uint64(_BASE)
                found += self.hashes[place : place + count]
        return streams.mix(found[first]), first

    def show(self, first: int, size: int) -> str:
        """`size` words from word `first` on as they are written, on one line."""
        return " ".join(self.text[self.starts[first] : self.ends[first + size - 1]].split())

    def counts(self, texts: int) -> Ints:
        """int64[texts]: how many words each text has."""
        return np.bincount(self.texts, minlength=texts).astype(np.int64)


def words_of(texts: Sequence[str]) -> Words:
    """The words of all texts."""
    text = _PARTING.join(texts)
    points = np.frombuffer(text.encode("utf-32-le", errors="replace"), dtype="<u4")
    found = [(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64))]
    begin = 0
    while begin < len(points):
        end = _block_end(points, begin)
        found.append(_hashed(points[begin:end], begin))
        begin = end
    hashes, starts, ends = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
    last = np.cumsum([len(each) + 1 for each in texts], dtype=np.int64)
    return Words(text, hashes, starts, ends, np.searchsorted(last, starts, side="right"))


def _block_end(points: NDArray[np.uint32], begin: int) -> int:
    """Where the block that begins at `begin` ends: after what separates words, or in a word longer than a block."""
    end = begin + _BLOCK
    if end >= len(points):
        return len(points)
    values, _ = _character_values()
    for tail in (_BLOCK // 16, _BLOCK):
        parting = np.flatnonzero(values[points[end - tail : end]] == 0)
        if len(parting):
            return end - tail + int(parting[-1]) + 1
    return end


def _hashed(points: NDArray[np.uint32], offset: int) -> tuple[UInt64s, Ints, Ints]:
    """Hashes, starts and ends of the words of one block, which holds a character at least: a word's hash is the sum of
    its characters' values, each times a power of the base that counts its place."""
    values, alone = _character_values()
    powers, inverses = _powers()
    of_points = values[points]
    inside = of_points != 0
    edges = np.flatnonzero(inside[1:] != inside[:-1]) + 1
    if int(points.max()) >= _FIRST_IDEOGRAPH:
        single = np.flatnonzero(alone[points])
        edges = np.union1d(edges, np.concatenate((single, single + 1)))
        edges = edges[(edges > 0) & (edges < len(points))]
    bounds = np.concatenate(([0], edges, [len(points)])).astype(np.int64)
    words = inside[bounds[:-1]]
    starts, ends = bounds[:-1][words], bounds[1:][words]
    with np.errstate(over="ignore"):
        sums = np.concatenate(([np.uint64(0)], np.cumsum(of_points * powers[: len(points)], dtype=np.uint64)))
        hashes = streams.mix((sums[ends] - sums[starts]) * inverses[starts])
    return hashes, starts + offset, ends + offset


@lru_cache(maxsize=1)
def _character_values() -> tuple[UInt64s, NDArray[np.bool_]]:
    """uint64[code points], a value of each folded character and 0 for what stands in no word; bool[code points],
    ideographs. Takes a quarter of a second and 10 MB, once a process."""
    folded = np.zeros(_CODE_POINTS, np.uint64)
    for point in range(_CODE_POINTS):
        char = chr(point)
        if unicodedata.category(char)[0] in _IN_WORDS:
            small = char.casefold()
            folded[point] = ord(small) if len(small) == 1 else point
    inside = folded != 0
    values = np.where(inside, streams.mix(folded) | np.uint64(1), np.uint64(0))
    alone = np.zeros(_CODE_POINTS, np.bool_)
    for first, last in _IDEOGRAPHS:
        alone[first : last + 1] = True
    return values, alone & inside


@lru_cache(maxsize=1)
def _powers() -> tuple[UInt64s, UInt64s]:
    """uint64[block] each: the powers of the base modulo 2**64, and their inverses."""
    tables = []
    for base in (_BASE, pow(_BASE, -1, 1 << 64)):
        powers = [1]
        for _ in range(_BLOCK - 1):
            powers.append(powers[-1] * base & (1 << 64) - 1)
        tables.append(np.array(powers, dtype=np.uint64))
    return tables[0], tables[1]
