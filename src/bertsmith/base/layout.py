"""How sequences are laid out in a packed batch, the type that data and model share, and how they are dealt to batches.

Legend: S sequences, T token slots, L slots of a padded row.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

Ints = NDArray[np.int64]
IGNORED_LABEL = -100
"""The label of positions without a target; they do not enter losses or counts."""

# Rows of a padded block are at least this share of its longest row.
_BLOCK_FILL = 0.8
# Rows are padded to a multiple of this: a CPU's softmax takes more than twice as long at 127 columns as at 128.
_BLOCK_COLUMNS = 16


@dataclass(frozen=True)
class Layout:
    """S sequences one after another: sequence s takes the slots offsets[s] to offsets[s + 1]. No slot is padding.

    offsets: int64[S + 1], ascending, from 0 to T. longest: the length of the longest sequence in slots, or an upper
    bound that stays the same from batch to batch where shapes must not change.
    """

    offsets: Ints
    longest: int

    @classmethod
    def from_lengths(cls, lengths: ArrayLike, longest: int | None = None) -> Layout:
        """The layout of sequences of these lengths (int[S]). ValueError where one is longer than `longest`."""
        lengths = np.asarray(lengths, dtype=np.int64)
        most = int(lengths.max(initial=0))
        if longest is not None and most > longest:
            raise ValueError(f"a sequence of {most} slots is longer than {longest}")
        return cls(np.concatenate(([0], np.cumsum(lengths))), most if longest is None else longest)

    @property
    def lengths(self) -> Ints:
        """int64[S]."""
        return np.diff(self.offsets)

    @property
    def tokens(self) -> int:
        """T, the number of slots."""
        return int(self.offsets[-1])

    @property
    def sequences(self) -> int:
        """S."""
        return len(self.offsets) - 1

    @property
    def first_slots(self) -> Ints:
        """int64[S]: the first slot of each sequence, its [CLS]."""
        return self.offsets[:-1]

    @cached_property
    def positions(self) -> Ints:
        """int64[T]: each slot's position in its sequence, from 0."""
        return np.arange(self.tokens) - np.repeat(self.first_slots, self.lengths)

    def filled(self) -> Layout:
        """The layout with sequences appended, none longer than `longest`, to make T a round size."""
        missing = round_up(self.tokens) - self.tokens
        if not missing or not self.tokens:
            return self
        whole, rest = divmod(missing, self.longest)
        more = [*[self.longest] * whole, *[rest] * (rest > 0)]
        return Layout.from_lengths(np.concatenate((self.lengths, more)), self.longest)

    @cached_property
    def blocks(self) -> Blocks:
        """The sequences as a few padded blocks of similar lengths, longest first: for attention without varlen."""
        order = np.argsort(-self.lengths, kind="stable")
        order = order[self.lengths[order] > 0]
        shapes, slots, real = [], [], []
        start = 0
        while start < len(order):
            longest = int(self.lengths[order[start]])
            members = order[start:]
            fill = _BLOCK_FILL * longest
            longest += -longest % _BLOCK_COLUMNS
            # Also those that a block of their own would pad to the same columns.
            members = members[self.lengths[members] >= min(fill, longest - _BLOCK_COLUMNS + 1)]
            columns = np.arange(longest)
            inside = columns[None, :] < self.lengths[members][:, None]
            rows = self.first_slots[members][:, None]
            slots.append(np.where(inside, rows + columns, rows).ravel())
            real.append(inside.ravel())
            shapes.append((len(members), longest))
            start += len(members)
        none = np.zeros(0, np.int64)
        return Blocks(tuple(shapes), np.concatenate([none, *slots]), np.concatenate([none.astype(bool), *real]))


@dataclass(frozen=True)
class Blocks:
    """Padded blocks of a layout, flattened one after another; P padded positions in all.

    shapes: (rows, L) of each block. slots: int64[P], the slot at each position; padding refers to the first slot of its
    sequence. real: bool[P], False for padding.
    """

    shapes: tuple[tuple[int, int], ...]
    slots: Ints
    real: NDArray[np.bool_]


def bin_numbers(lengths: ArrayLike, bins: int) -> Ints:
    """Deals sequences to `bins` bins of about equal token counts: longest first, each to the least filled bin.

    Returns the bin of each sequence, int64[S]; of equally filled bins the lowest number comes first. Bins may be empty
    if there are fewer sequences than bins.

    All sequences of one length are dealt at once. With the bins in the order of (load, number), those up to the least
    load plus the length get one each before any gets a second: nothing that is put back comes before them.
    """
    lengths = np.asarray(lengths, dtype=np.int64)
    keys = np.arange(bins)  # load x bins + number, ascending
    chosen: list[Ints] = []
    counts = np.bincount(lengths)
    for length in np.flatnonzero(counts)[::-1].tolist():
        left, step = int(counts[length]), length * bins
        while left:
            if not length:  # the bin stays the least filled one
                chosen.append(np.full(left, keys[0]))
                break
            ready = int(keys.searchsorted(keys[0] + step))
            if ready == bins <= left:  # every bin gets one, as often as there are enough for all, in the same order
                rounds = left // bins
                chosen.append(np.tile(keys, rounds))
                keys += rounds * step
                left -= rounds * bins
                continue
            ready = min(ready, left)
            chosen.append(keys[:ready].copy())
            keys[:ready] += step
            keys.sort(kind="stable")  # two ascending runs, which are merged
            left -= ready
    numbers = np.empty(len(lengths), dtype=np.int64)
    numbers[_ascending(lengths.max(initial=0) - lengths)] = np.concatenate([*chosen, keys[:0]]) % bins
    return numbers


def members_of(numbers: Ints, bins: int) -> list[Ints]:
    """The indices of the sequences of each bin, ascending: the sums of a step do not depend on the order, and a fixed
    one makes it reproducible. numbers: the bin of each sequence."""
    order = _ascending(numbers)
    ends = np.cumsum(np.bincount(numbers, minlength=bins)).tolist()
    return [order[first:end] for first, end in pairwise([0, *ends])]


def bin_sums(values: Ints, numbers: Ints, bins: int) -> Ints:
    """The sum of the values (int64[S]) of each bin, int64[bins]. numbers: the bin of each sequence."""
    return np.bincount(numbers, values, minlength=bins).astype(np.int64)  # exact: sums below 2**53


def _ascending(values: Ints) -> Ints:
    """The stable order of values from 0, int64[n]. numpy sorts 16 bits by radix, ten times as fast as 64."""
    return np.argsort(values.astype(np.uint16) if values.max(initial=0) < 1 << 16 else values, kind="stable")


def round_up(count: int) -> int:
    """Rounds up to one of a few sizes, by at most 1/32 or 15 slots, so that batches have few different shapes.

    A CPU's matrix kernels are generated for each new shape, which took a sixth of a step's time when every step had its
    own shape.
    """
    grain = max(16, 1 << max(count.bit_length() - 6, 0))
    return -(-count // grain) * grain


def deal_within(lengths: ArrayLike, ranks: int, budget_tokens: int) -> list[Ints]:
    """Deals sequences to ranks x A bins of about equal token counts, with the smallest A for which no bin of several
    sequences exceeds the budget. The bins of a rank are adjacent: rank r has bins r * A to (r + 1) * A."""
    lengths = np.asarray(lengths, dtype=np.int64)
    # If a sequence is longer than the budget, the token count alone would give more bins than there are sequences.
    each = max(1, min(-(-int(lengths.sum()) // (budget_tokens * ranks)), -(-len(lengths) // ranks)))
    while True:
        bins = ranks * each
        numbers = bin_numbers(lengths, bins)
        if not ((np.bincount(numbers, minlength=bins) > 1) & (bin_sums(lengths, numbers, bins) > budget_tokens)).any():
            return members_of(numbers, bins)
        each += 1


def ranges(starts: Ints, lengths: Ints) -> Ints:
    """The integers of all ranges starts[i] to starts[i] + lengths[i], concatenated."""
    ends = np.cumsum(lengths)
    return np.arange(int(lengths.sum())) + np.repeat(starts - ends + lengths, lengths)
