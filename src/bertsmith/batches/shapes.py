"""The one shape of all micro-batches of a phase with compiled steps, and how sequences are dealt into it.

Legend: T token slots, S sequence slots, M masked slots.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertsmith.base.errors import BertsmithError
from bertsmith.base.layout import Ints, Layout, bin_numbers, bin_sums, members_of
from bertsmith.batches.masking import MaskingSettings

TILE = 128
"""Token slots and masked slots are multiples of this: matrix products are fastest on whole tiles."""
# Room above the expectation: a factor on the mean, and standard deviations of a step's tokens.
_MARGIN, _DEVIATIONS = 1.01, 3.0
Count = TypeVar("Count", int, Ints)


@dataclass(frozen=True)
class FixedShapes:
    """tokens: T. sequences: S. masked: M. longest: the most slots of a sequence. micro_batches: A, per step and
    rank; a step whose sequences do not fit has more. expected_fill: the expected share of real tokens in the A x T
    slots."""

    tokens: int
    sequences: int
    masked: int
    longest: int
    micro_batches: int
    expected_fill: float

    @classmethod
    def for_steps(
        cls,
        lengths: NDArray[np.integer],
        masking: MaskingSettings,
        *,
        global_batch: int,
        ranks: int,
        budget_tokens: int,
        longest: int,
    ) -> Self:
        """The shape for steps of `global_batch` sequences whose lengths are drawn from `lengths` (int[n], n above 0).

        A is the smallest number for which T stays within the budget; T is 1.01 times a micro-batch's share of the
        expected tokens, plus three standard deviations. Raises BertsmithError if the longest sequence exceeds it.
        """
        counts = np.bincount(lengths)
        lengths, weights = np.arange(len(counts)), counts / counts.sum()
        mean = float(weights @ lengths)
        deviation = math.sqrt(float(weights @ (lengths - mean) ** 2) * global_batch)
        expected = mean * global_batch
        least = check_budget(budget_tokens, longest)
        needed = _MARGIN * expected + _DEVIATIONS * deviation
        # Fewer cannot hold them, and to count up from 1 takes long where there are billions.
        largest = budget_tokens // TILE * TILE
        for micro_batches in itertools.count(max(1, math.floor(needed / (ranks * largest)))):
            bins = ranks * micro_batches
            tokens = max(tiles(needed / bins), least)
            if tokens <= largest:
                break
        predictions = np.where(weights > 0, masking.predictions(lengths), 0)
        share = float(weights @ predictions) / mean
        fitting = tokens / mean
        spread = math.sqrt(float(weights @ (predictions - share * lengths) ** 2) * fitting)
        most = int(predictions.max())
        return cls(
            tokens=tokens,
            sequences=_eights(1.05 * fitting + tokens / longest * 0.05 + 8),
            masked=min(tiles(max(_MARGIN * share * tokens + _DEVIATIONS * spread, most)), tokens),
            longest=longest,
            micro_batches=micro_batches,
            expected_fill=expected / (bins * tokens),
        )

    @classmethod
    def around(cls, layouts: list[Layout], masked: list[int], longest: int) -> Self:
        """The smallest shape that holds all of these micro-batches (`masked` slots each)."""
        tokens = max([TILE, *(tiles(layout.tokens) for layout in layouts)])
        sequences = [layout.sequences + _filling_sequences(tokens - layout.tokens, longest) for layout in layouts]
        real = sum(layout.tokens for layout in layouts)
        fill = real / (tokens * len(layouts)) if layouts else 1.0
        return cls(tokens, _eights(max(sequences, default=1)), tiles(max(masked, default=1)), longest, 1, fill)

    def hold(self, sequences: Ints, tokens: Ints, masked: Ints) -> bool:
        """Whether all micro-batches of so many sequences, tokens and masked slots (int64[bins]) fit, filled up."""
        slots = sequences + _filling_sequences(self.tokens - tokens, self.longest)
        return bool(((tokens <= self.tokens) & (masked <= self.masked) & (slots <= self.sequences)).all())

    def filled(self, layout: Layout) -> Layout:
        """The layout with unlabelled sequences appended up to T slots, and empty ones up to S; `longest` as here."""
        whole, rest = divmod(self.tokens - layout.tokens, self.longest)
        more = np.zeros(self.sequences - layout.sequences, np.int64)
        more[:whole] = self.longest
        if rest:
            more[whole] = rest
        return Layout.from_lengths(np.concatenate((layout.lengths, more)), self.longest)


def deal_fixed(lengths: Ints, masked: Ints, ranks: int, shapes: FixedShapes) -> list[Ints]:
    """Deals sequences (lengths and masked slots: int64[n]) to ranks x A bins that fit the shape.

    A is the shape's, increased by one on every rank while some bin does not fit. The bins of a rank are adjacent.
    """
    room = ((int(lengths.sum()), shapes.tokens), (int(masked.sum()), shapes.masked), (len(lengths), shapes.sequences))
    # Fewer would hold less in all than the step has.
    each = max(shapes.micro_batches, *(-(-needed // (ranks * held)) for needed, held in room))
    while True:
        bins = ranks * each
        numbers = bin_numbers(lengths, bins)
        tokens, predicted = (bin_sums(values, numbers, bins) for values in (lengths, masked))
        if shapes.hold(np.bincount(numbers, minlength=bins), tokens, predicted):
            return members_of(numbers, bins)
        assert bins < len(lengths), "a sequence alone always fits"
        each += 1


def _filling_sequences(missing: Count, longest: int) -> Count:
    return -(-missing // longest)


def check_budget(budget_tokens: int, longest: int) -> int:
    """The fewest slots of a micro-batch with the longest sequence. Raises BertsmithError if the budget is smaller."""
    least = tiles(longest)
    if least > budget_tokens:
        what = f"micro_batch_tokens {budget_tokens} has no room for a sequence of {longest} in multiples of {TILE}"
        raise BertsmithError(what, "micro_batch_tokens", f"use at least {least}, or compile: false")
    return least


def tiles(count: float) -> int:
    """The next multiple of `TILE`."""
    return -(-math.ceil(count) // TILE) * TILE


def _eights(count: float) -> int:
    return -(-math.ceil(count) // 8) * 8
