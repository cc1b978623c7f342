"""From instances to a packed batch: sequences one after another, no slot lost to padding.

Legend: S sequences, T slots, M masked slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.base.layout import IGNORED_LABEL, Ints, Layout, ranges, round_up
from bertsmith.base.streams import bits
from bertsmith.batches.masking import MaskingSettings, mask
from bertsmith.batches.pairs import Instances, slots_of
from bertsmith.batches.shapes import FixedShapes
from bertsmith.tokens.special_ids import SpecialIds


@dataclass(frozen=True)
class PretrainBatch:
    """A micro-batch of masked pairs or single segments, unpadded.

    input_ids, token_type_ids (0 for [CLS] A [SEP], 1 for B [SEP]), position_ids: int64[T]. layout: where the sequences
    are. masked_positions: int64[M], distinct slots of the batch, ascending. masked_labels: int64[M], the true pieces.
    next_sentence_labels: int64[S], 0 is next, 1 random, -100 where there is no second segment. filling: the number of
    slots at the end that only fill up the shape; their labels are -100, and masked positions among them are not
    ascending.
    """

    input_ids: Ints
    token_type_ids: Ints
    position_ids: Ints
    layout: Layout
    masked_positions: Ints
    masked_labels: Ints
    next_sentence_labels: Ints
    filling: int = 0

    @property
    def tokens(self) -> int:
        """The number of slots that are not filling."""
        return self.layout.tokens - self.filling

    @property
    def sequences(self) -> int:
        """The number of sequences that are not filling; they come first."""
        return int(np.searchsorted(self.layout.first_slots, self.tokens))


@dataclass(frozen=True)
class Part:
    """Instances of one shard and the rows of the batch that they occupy.

    tokens: of the shard. chosen: int64[n], numbers of the instances. rows: int64[n]. key: of the shard, for the masks.
    """

    tokens: NDArray[np.unsignedinteger[Any]]
    instances: Instances
    chosen: Ints
    rows: Ints
    key: int


def pack(
    parts: Sequence[Part],
    special: SpecialIds,
    masking: MaskingSettings,
    is_continuation: NDArray[np.bool_] | None = None,
) -> PretrainBatch:
    """Builds the batch of all parts, whose rows together are 0 to S - 1, each once. One gather of tokens per part.
    is_continuation: as in `mask`."""
    rows = np.concatenate([np.empty(0, np.int64), *(part.rows for part in parts)])
    chosen, a_start, a_length, b_start, b_length, labels = np.zeros((6, len(rows)), dtype=np.int64)
    keys = np.zeros(len(rows), dtype=np.uint64)
    for part in parts:
        a_start[part.rows] = part.instances.a_start[part.chosen]
        a_length[part.rows] = part.instances.a_length[part.chosen]
        b_start[part.rows] = part.instances.b_start[part.chosen]
        b_length[part.rows] = part.instances.b_length[part.chosen]
        labels[part.rows] = part.instances.next_sentence_label[part.chosen]
        chosen[part.rows] = part.chosen
        keys[part.rows] = part.key
    labels[b_length == 0] = IGNORED_LABEL
    layout = Layout.from_lengths(slots_of(a_length, b_length))
    a_first = layout.first_slots + 1
    b_first = a_first + a_length + 1

    ids = np.full(layout.tokens, special.sep, dtype=np.int64)
    hideable = np.ones(layout.tokens, dtype=np.bool_)
    hideable[layout.first_slots] = hideable[b_first - 1] = hideable[layout.offsets[1:] - 1] = False
    ids[layout.first_slots] = special.cls
    # Both segments of every row, the rows of each part together.
    lengths, starts, slots = (
        np.stack(segments, axis=1)[rows].ravel()
        for segments in ((a_length, b_length), (a_start, b_start), (a_first, b_first))
    )
    sources, targets = ranges(starts, lengths), ranges(slots, lengths)
    ends = np.concatenate(([0], np.cumsum(lengths)))[2 * np.cumsum([0, *(len(part.rows) for part in parts)])]
    for part, (begin, end) in zip(parts, pairwise(ends.tolist()), strict=True):
        ids[targets[begin:end]] = part.tokens[sources[begin:end]]

    keys = bits(keys, chosen.astype(np.uint64))
    seen, masked_positions, masked_labels = mask(ids, hideable, layout, keys, masking, special, is_continuation)
    types = (layout.positions >= np.repeat(a_length + 2, layout.lengths)).astype(np.int64)
    return PretrainBatch(seen, types, layout.positions, layout, masked_positions, masked_labels, labels)


def fill(batch: PretrainBatch) -> PretrainBatch:
    """The batch with unlabelled sequences appended, so that T and M are round sizes (`round_up`)."""
    filled, masked = batch.layout.filled(), len(batch.masked_positions)
    if not batch.layout.tokens or filled.tokens - batch.layout.tokens + round_up(masked) == masked:
        return batch
    return _filled(batch, filled, round_up(masked), int(batch.input_ids[0]))


def fill_fixed(batch: PretrainBatch, shapes: FixedShapes, piece: int) -> PretrainBatch:
    """The batch filled up to a fixed shape. piece: the id in the filling slots."""
    return _filled(batch, shapes.filled(batch.layout), shapes.masked, piece)


def fix_shapes(batches: Sequence[PretrainBatch], longest: int, piece: int) -> list[PretrainBatch]:
    """A list of batches, filled up to the smallest shape that holds all of them. longest: of any sequence."""
    layouts = [batch.layout for batch in batches]
    shapes = FixedShapes.around(layouts, [len(batch.masked_positions) for batch in batches], longest)
    return [fill_fixed(batch, shapes, piece) for batch in batches]


def _filled(batch: PretrainBatch, filled: Layout, masked: int, piece: int) -> PretrainBatch:
    """The batch filled up to the layout `filled` and to `masked` masked slots. What is added is labelled -100, so it
    enters no loss or count. Added masked positions are distinct slots, so that no two gradients go to the same one."""
    tokens = batch.layout.tokens
    missing, unlabelled = filled.tokens - tokens, masked - len(batch.masked_positions)
    free = np.ones(filled.tokens, np.bool_)
    free[batch.masked_positions] = False
    positions = np.flatnonzero(free)[::-1][:unlabelled]
    return PretrainBatch(
        np.concatenate((batch.input_ids, np.full(missing, piece))),
        np.concatenate((batch.token_type_ids, np.zeros(missing, np.int64))),
        np.concatenate((batch.position_ids, filled.positions[tokens:])),
        filled,
        np.concatenate((batch.masked_positions, positions)),
        np.concatenate((batch.masked_labels, np.full(unlabelled, IGNORED_LABEL))),
        np.concatenate((batch.next_sentence_labels, np.full(filled.sequences - batch.layout.sequences, IGNORED_LABEL))),
        batch.filling + missing,
    )
