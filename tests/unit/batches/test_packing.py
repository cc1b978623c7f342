"""A packed batch beside the same instances built one by one."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.layout import IGNORED_LABEL, round_up
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.packing import Part, fill, pack, ranges
from bertsmith.batches.pairs import PairSettings, draw_pairs
from made_shards import SPECIAL, make_shard, random_documents


def make_parts(seed: int, rows: int, single: bool = False) -> list[Part]:
    """Two shards whose instances alternate in the batch in a drawn order."""
    draw = np.random.default_rng(seed)
    order = draw.permutation(rows)
    parts = []
    for number, taken in enumerate((order[: rows // 2], order[rows // 2 :])):
        shard = make_shard(random_documents(seed + number, 20), first_id=10 + 20_000 * number)
        instances = draw_pairs(shard, seed, 48, PairSettings(0.5, 0.1, single))
        chosen = draw.integers(0, len(instances), len(taken))
        parts.append(Part(shard.tokens, instances, chosen, taken, number))
    return parts


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40))
def test_a_batch_is_its_instances_one_behind_the_other(seed: int, rows: int) -> None:
    parts = make_parts(seed, rows)
    batch = pack(parts, SPECIAL, MaskingSettings())
    unhidden = batch.input_ids.copy()
    unhidden[batch.masked_positions] = batch.masked_labels
    assert batch.layout.sequences == rows
    assert not np.isin(batch.masked_labels, [SPECIAL.cls, SPECIAL.sep]).any()
    for part in parts:
        for row, i in zip(part.rows, part.chosen, strict=True):
            of = part.instances
            a = part.tokens[of.a_start[i] : of.a_start[i] + of.a_length[i]].tolist()
            b = part.tokens[of.b_start[i] : of.b_start[i] + of.b_length[i]].tolist()
            here = slice(*batch.layout.offsets[row : row + 2].tolist())
            assert unhidden[here].tolist() == [SPECIAL.cls, *a, SPECIAL.sep, *b, SPECIAL.sep]
            assert batch.token_type_ids[here].tolist() == [0] * (len(a) + 2) + [1] * (len(b) + 1)
            assert batch.position_ids[here].tolist() == list(range(len(a) + len(b) + 3))
            assert batch.next_sentence_labels[row] == of.next_sentence_label[i]


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40), st.floats(0.01, 0.9))
def test_single_segments_have_one_separator_and_no_label(seed: int, rows: int, rate: float) -> None:
    parts, masking = make_parts(seed, rows, single=True), MaskingSettings(rate, special_pieces=2)
    batch = pack(parts, SPECIAL, masking)
    assert not np.isin(batch.masked_labels, [SPECIAL.cls, SPECIAL.sep]).any()
    unhidden = batch.input_ids.copy()
    unhidden[batch.masked_positions] = batch.masked_labels
    for part in parts:
        for row, i in zip(part.rows, part.chosen, strict=True):
            of = part.instances
            text = part.tokens[of.a_start[i] : of.a_start[i] + of.a_length[i]].tolist()
            here = slice(*batch.layout.offsets[row : row + 2].tolist())
            assert unhidden[here].tolist() == [SPECIAL.cls, *text, SPECIAL.sep]
    assert not batch.token_type_ids.any()
    assert (batch.next_sentence_labels == IGNORED_LABEL).all()
    assert len(batch.masked_labels) == masking.predictions(batch.layout.lengths).sum()
    assert batch.sequences == fill(batch).sequences == rows


def test_types_and_longest() -> None:
    batch = pack(make_parts(3, 12), SPECIAL, MaskingSettings())
    arrays = (
        batch.input_ids,
        batch.token_type_ids,
        batch.position_ids,
        batch.masked_positions,
        batch.masked_labels,
        batch.next_sentence_labels,
    )
    assert {array.dtype for array in arrays} == {np.dtype(np.int64)}
    assert len(batch.input_ids) == batch.layout.tokens
    assert batch.layout.longest == batch.layout.lengths.max()


def test_a_batch_of_no_sequence_is_empty_and_stays_so() -> None:
    batch = pack([], SPECIAL, MaskingSettings())
    assert fill(batch).layout.tokens == 0
    assert (batch.layout.sequences, batch.layout.tokens) == (0, 0)
    assert len(batch.masked_positions) == len(batch.next_sentence_labels) == 0


def test_ranges_one_behind_the_other() -> None:
    assert ranges(np.array([5, 0, 9]), np.array([2, 0, 3])).tolist() == [5, 6, 9, 10, 11]
    assert len(ranges(np.zeros(0, np.int64), np.zeros(0, np.int64))) == 0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 40))
def test_filling_adds_only_what_nothing_is_asked_of(seed: int, rows: int) -> None:
    batch = pack(make_parts(seed, rows), SPECIAL, MaskingSettings())
    filled = fill(batch)
    tokens, masked = batch.layout.tokens, len(batch.masked_positions)
    assert filled.layout.tokens == round_up(tokens)
    assert len(filled.masked_positions) == round_up(masked)
    for name in ("input_ids", "token_type_ids", "position_ids"):
        assert np.array_equal(getattr(filled, name)[:tokens], getattr(batch, name)), name
    assert np.array_equal(filled.masked_labels[:masked], batch.masked_labels)
    assert set(filled.masked_labels[masked:].tolist()) <= {IGNORED_LABEL}
    assert np.array_equal(filled.next_sentence_labels[:rows], batch.next_sentence_labels)
    assert set(filled.next_sentence_labels[rows:].tolist()) <= {IGNORED_LABEL}
    assert filled.layout.lengths.max() == batch.layout.longest, "no filling sequence is longer than the batch's longest"
    assert filled.position_ids.max() < batch.layout.longest
