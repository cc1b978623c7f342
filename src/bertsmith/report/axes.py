"""Axes: round numbers to mark, their labels, and where a value lies in the picture."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from bertsmith.report.curves import Floats

Value = TypeVar("Value", float, Floats)
_ROUND = (1, 2, 5, 10)
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
# Closer values than this, relative to their size, are drawn as equal.
_CLOSEST = 1e-9
_SMALLEST = 1e-100


@dataclass(frozen=True)
class Axis:
    """The values from `low` to `high` over `length` units of the picture, from its `start` on (a negative length runs
    backwards). ticks: the values that are marked, rising, all of them inside."""

    low: float
    high: float
    ticks: tuple[float, ...]
    start: float
    length: float

    def place(self, value: Value) -> Value:
        """Of a value, or of several."""
        return self.start + (value - self.low) / (self.high - self.low) * self.length

    @property
    def labels(self) -> list[str]:
        """A text for each tick; no two are alike."""
        return labels(self.ticks)


def rounded_axis(low: float, high: float, start: float, length: float) -> Axis:
    """An axis that begins and ends at a tick, with some five of them."""
    ticks = tick_values(*widened(low, high), 4)
    return Axis(ticks[0], ticks[-1], ticks, start, length)


def tight_axis(low: float, high: float, start: float, length: float, count: int = 6) -> Axis:
    """An axis over these values and no more."""
    low, high = widened(low, high)
    slack = (high - low) * 1e-6
    inside = tuple(tick for tick in tick_values(low, high, count) if low - slack <= tick <= high + slack)
    return Axis(low, high, inside, start, length)


def widened(low: float, high: float) -> tuple[float, float]:
    """The ends of an axis for values between these, which may be one and the same."""
    size = max(abs(low), abs(high))
    if high - low > max(_CLOSEST * size, _SMALLEST):
        return low, high
    room = size / 10 if size > _SMALLEST else 1.0
    return low - room, high + room


def tick_values(low: float, high: float, count: int) -> tuple[float, ...]:
    """Multiples of 1, 2 or 5 times a power of ten, from the last one at or below `low` to the first one at or above
    `high`, about `count` apart."""
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = power * next(each for each in _ROUND if each * power >= rough * 0.999 or each == _ROUND[-1])
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(place * step for place in range(first, last + 1))


def labels(values: Sequence[float]) -> list[str]:
    """Evenly spaced values as texts with as many digits as tell them apart: 0.25, 20k, 5e-5."""
    largest = max(map(abs, values))
    step = min((b - a for a, b in itertools.pairwise(values)), default=largest or 1.0)
    if largest and not 1e-3 <= largest < 1e15:
        exponent = math.floor(math.log10(largest) + 1e-9)
        unit, suffix = 10.0**exponent, f"e{exponent}"
    else:
        unit, suffix = next(((size, name) for size, name in _PREFIXES if largest >= 10 * size), (1.0, ""))
    digits = max(0, -math.floor(math.log10(step / unit) + 1e-9))
    return ["0" if not value else f"{value / unit:.{digits}f}{suffix}" for value in values]
