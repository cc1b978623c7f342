"""Masking: which pieces of a batch are hidden and what replaces them, BERT's 80/10/10, for a whole micro-batch at once.

Every draw is keyed by the instance and the position in it, so an instance has the same mask in any batch, on any rank.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bertsmith.base import streams
from bertsmith.base.layout import Ints, Layout, ranges
from bertsmith.batches.pairs import SPECIAL_PIECES
from bertsmith.tokens.special_ids import SpecialIds

# The 64-bit sort key of a slot: row of the batch, random bits, position in the sequence.
_PLACE_BITS, _RANDOM_BITS = 16, 28
_ROWS = 1 << (64 - _PLACE_BITS - _RANDOM_BITS)
# Counters of the three draws that a position may need; positions are below 2**16.
_ACTION, _PIECE = np.uint64(1 << 16), np.uint64(2 << 16)


@dataclass(frozen=True)
class MaskingSettings:
    """rate: the share of an instance's slots to predict, special pieces included. Of those, mask_share become [MASK],
    random_share a random piece of the whole vocabulary (special pieces too, as in Google's code), the rest stay.
    whole_words: hides all pieces of a word or none; at most one word of an instance is cut, where its share would not
    be met (`choose_words`). final_rate: that of the run's last step, to which the rate moves in a straight line; 0
    keeps `rate`, and so does a run of one step. first_step, run_steps: the steps of the run before the phase, and in
    all. special_pieces: of an instance, which are not hidden."""

    rate: float = 0.15
    mask_share: float = 0.8
    random_share: float = 0.1
    whole_words: bool = False
    final_rate: float = 0.0
    first_step: int = 0
    run_steps: int = 1
    special_pieces: int = SPECIAL_PIECES

    def of_step(self, number: int) -> MaskingSettings:
        """Those of a step of the phase, counted from 0."""
        if not self.final_rate:
            return self
        progress = (self.first_step + number) / max(1, self.run_steps - 1)
        return replace(self, rate=(1 - progress) * self.rate + progress * self.final_rate, final_rate=0.0)

    def densest(self) -> MaskingSettings:
        """Those of the step that hides the most."""
        return replace(self, rate=max(self.rate, self.final_rate), final_rate=0.0)

    def predictions(self, lengths: Ints) -> Ints:
        """int64[S]: the number of pieces to hide in instances of these lengths: round(length x rate), half to even, at
        least 1 and at most the number that are not special. 128 slots give 19, 512 give 77."""
        rounded = np.rint(lengths * self.rate).astype(np.int64)
        counts: Ints = np.minimum(np.maximum(rounded, 1), lengths - self.special_pieces)
        return counts


def mask(
    ids: Ints,
    hideable: NDArray[np.bool_],
    layout: Layout,
    keys: streams.UInt64s,
    settings: MaskingSettings,
    special: SpecialIds,
    is_continuation: NDArray[np.bool_] | None = None,
) -> tuple[Ints, Ints, Ints]:
    """Hides pieces of a micro-batch.

    ids: int64[T]. hideable: bool[T], False for [CLS] and [SEP]. keys: uint64[S], one per instance. is_continuation:
    bool[V], whether a piece continues a word; whole words need it. Returns the ids that the model sees (int64[T]), the
    slots to predict in ascending order (int64[M]) and their true ids (int64[M]).
    """
    slots = np.flatnonzero(hideable)
    places = layout.positions[slots]
    rows = np.repeat(np.arange(layout.sequences), layout.lengths)[slots]
    priorities = streams.bits(keys[rows], places.astype(np.uint64)) >> np.uint64(64 - _RANDOM_BITS)
    counts = settings.predictions(layout.lengths)
    if settings.whole_words:
        assert is_continuation is not None, "which pieces continue a word is not given"
        positions = slots[choose_words(rows, places, priorities, counts, is_continuation[ids[slots]])]
    else:
        positions = choose_slots(layout, rows, places, priorities, counts)
    chosen_rows = np.searchsorted(layout.offsets, positions, side="right") - 1
    chosen_places = layout.positions[positions].astype(np.uint64)
    actions = streams.uniform(keys[chosen_rows], chosen_places + _ACTION)
    pieces = streams.below(special.vocabulary_size, keys[chosen_rows], chosen_places + _PIECE)
    seen = ids.copy()
    seen[positions] = replacements(ids[positions], actions, pieces, settings, special)
    return seen, positions, ids[positions]


def choose_slots(layout: Layout, rows: Ints, places: Ints, priorities: streams.UInt64s, counts: Ints) -> Ints:
    """The slots with the lowest priorities, counts[s] of each sequence s; int64[M], ascending.

    rows, places: int64[C], sequence and position of the candidate slots. priorities: uint64[C], below 2**28; ties are
    broken by position. Each sequence has at least counts[s] candidates.
    """
    words = _sort_keys(rows, places, priorities)
    words.sort()
    of_row = np.bincount(rows, minlength=layout.sequences)
    rank_in_row = np.arange(len(rows)) - np.repeat(np.cumsum(of_row) - of_row, of_row)
    taken = words[rank_in_row < np.repeat(counts, of_row)]
    taken_rows = taken >> np.uint64(_RANDOM_BITS + _PLACE_BITS)  # unsigned: of half of the rows the highest bit is set
    slots = layout.first_slots[taken_rows] + (taken & np.uint64((1 << _PLACE_BITS) - 1)).astype(np.int64)
    return np.sort(slots)


def choose_words(
    rows: Ints, places: Ints, priorities: streams.UInt64s, counts: Ints, continues: NDArray[np.bool_]
) -> Ints:
    """Which candidates (int64[M], ascending) are hidden if words are hidden whole: words in the order of the priorities
    of their first pieces, without those that are too long for what is left of counts[s], as in Google's code. What is
    then still left is filled from the beginning of the first of these, so that counts are exact.

    rows, places, priorities: of the candidates, as in `choose_slots`. continues: bool[C], whether a candidate's piece
    continues a word; after a slot that is no candidate, and at the start of a sequence, a word begins nevertheless.
    """
    begins = ~continues
    begins[:1] = True
    begins[1:] |= (np.diff(rows) != 0) | (np.diff(places) != 1)
    firsts = np.flatnonzero(begins)
    order = np.argsort(_sort_keys(rows[firsts], places[firsts], priorities[firsts]))
    lengths, firsts = np.diff(np.append(firsts, len(rows)))[order], firsts[order]
    row = rows[firsts]
    starts = np.searchsorted(row, row)
    taken = lengths <= counts[row]
    while True:
        own = np.where(taken, lengths, 0)
        used = np.cumsum(own)
        used -= (used - own)[starts]
        heads = _first_of_each(row, taken & (used > counts[row]))
        if not len(heads):
            break
        # Behind the first word that does not fit, no word fits that is longer than what it found.
        left = np.full(len(counts), len(rows))
        left[row[heads]] = (counts[row] - used + lengths)[heads]
        taken &= (used <= counts[row]) | (lengths <= left[row])
    hidden = np.where(taken, lengths, 0)
    missing = counts - np.bincount(row, hidden, len(counts)).astype(np.int64)
    heads = _first_of_each(row, ~taken & (missing[row] > 0))
    hidden[heads] = missing[row[heads]]
    return np.sort(ranges(firsts, hidden))


def _first_of_each(row: Ints, marked: NDArray[np.bool_]) -> Ints:
    """Places of the first marked element of each row that has one. row: ascending."""
    found = np.flatnonzero(marked)
    return found[np.diff(row[found], prepend=-1) > 0]


def _sort_keys(rows: Ints, places: Ints, priorities: streams.UInt64s) -> streams.UInt64s:
    """By row, then priority (below 2**28), then place."""
    assert not len(rows) or rows[-1] < _ROWS, "a micro-batch has fewer than a million sequences"
    keys = rows.astype(np.uint64) << np.uint64(_RANDOM_BITS)
    return (keys | priorities) << np.uint64(_PLACE_BITS) | places.astype(np.uint64)


def replacements(
    labels: Ints, actions: NDArray[np.float64], pieces: Ints, settings: MaskingSettings, special: SpecialIds
) -> Ints:
    """int64[M]: what replaces `labels`. actions: float64[M] in [0, 1); from low to high: [MASK], piece, unchanged."""
    kept_or_random = np.where(actions < settings.mask_share + settings.random_share, pieces, labels)
    return np.where(actions < settings.mask_share, special.mask, kept_or_random)
