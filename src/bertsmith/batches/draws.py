"""The random draws for sentence pairs, behind a protocol so that a test can use another generator."""

from __future__ import annotations

from typing import Protocol

from bertsmith.base import streams

_BUFFER = 4096


class Draws(Protocol):
    """Draws in sequence. Their order is that of Google's `create_pretraining_data.py`."""

    def uniform(self) -> float:
        """A number in [0, 1)."""

    def integer(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""

    def tosses(self, count: int) -> int:
        """`count` fair coin tosses: bit i of the result is toss i. Bits from `count` on are undefined."""


class KeyedDraws:
    """The draws of one stream: equal keys give equal draws. Numbers are drawn in batches of a few thousand."""

    def __init__(self, key: int) -> None:
        self._generator = streams.generator(key)
        self._uniforms = iter(list[float]())
        self._words = iter(list[int]())

    def uniform(self) -> float:
        for number in self._uniforms:
            return number
        self._uniforms = iter(self._generator.random(_BUFFER).tolist())
        return next(self._uniforms)

    def integer(self, low: int, high: int) -> int:
        return low + int(self.uniform() * (high - low + 1))

    def tosses(self, count: int) -> int:
        coins = self._word()
        for shift in range(64, count, 64):
            coins |= self._word() << shift
        return coins

    def _word(self) -> int:
        for word in self._words:
            return word
        self._words = iter(self._generator.integers(0, 2**64, size=_BUFFER, dtype="uint64").tolist())
        return next(self._words)
