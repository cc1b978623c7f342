"""Fixed shapes: every micro-batch of a phase has one shape, loses nothing to it, and is asked of nothing more."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.base.layout import IGNORED_LABEL, Layout
from bertsmith.batches.epochs import Epochs
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.order import Order
from bertsmith.batches.packing import PretrainBatch, fix_shapes
from bertsmith.batches.shapes import FixedShapes, deal_fixed
from bertsmith.batches.steps import Step, StepBuilder, held_out_batches
from made_shards import SPECIAL, make_source

MASKING = MaskingSettings()
LONGEST = 64


def order() -> Order:
    return Order(Epochs(make_source(documents=60), seed=3, phase=1, sequence_length=LONGEST))


def shapes_for(lengths: np.ndarray, global_batch: int, ranks: int = 1, budget: int = 1024) -> FixedShapes:
    return FixedShapes.for_steps(
        lengths, MASKING, global_batch=global_batch, ranks=ranks, budget_tokens=budget, longest=LONGEST
    )


def steps(numbers: int, ranks: int = 1, global_batch: int = 40, budget: int = 1024) -> list[Step]:
    source = order()
    shapes = shapes_for(source.epoch(0).lengths, global_batch, ranks, budget)
    return [
        StepBuilder(source, global_batch, MASKING, budget, rank, ranks, shapes).build(number)
        for number in range(numbers)
        for rank in range(ranks)
    ]


def shape_of(batch: PretrainBatch) -> tuple[int, ...]:
    arrays = (batch.input_ids, batch.masked_positions, batch.masked_labels, batch.next_sentence_labels)
    return (*(len(each) for each in arrays), len(batch.layout.offsets), batch.layout.longest)


@pytest.mark.parametrize(("ranks", "budget"), [(1, 1024), (1, 256), (2, 1024), (4, 256)])
def test_every_micro_batch_of_every_step_and_rank_has_one_shape(ranks: int, budget: int) -> None:
    built = steps(12, ranks, budget=budget)
    batches = [batch for step in built for batch in step.micro_batches]
    assert len({shape_of(batch) for batch in batches}) == 1
    assert all(len(array) % 128 == 0 for batch in batches for array in (batch.input_ids, batch.masked_positions))
    assert len(batches[0].input_ids) <= budget
    assert all(len({len(built[i + r].micro_batches) for r in range(ranks)}) == 1 for i in range(0, len(built), ranks))


def test_a_fixed_step_holds_the_same_instances_as_a_ragged_one() -> None:
    ragged = StepBuilder(order(), 40, MASKING, 1024).build(3)
    fixed = steps(4)[3]
    assert fixed.totals == ragged.totals

    def content(step: Step) -> list[tuple[list[int], int]]:
        found = []
        for batch in step.micro_batches:
            sequences = np.split(batch.input_ids, batch.layout.offsets[1:-1])
            labels = batch.next_sentence_labels.tolist()
            found += [
                (ids.tolist(), label) for ids, label in zip(sequences, labels, strict=True) if label != IGNORED_LABEL
            ]
        return sorted(found)

    assert content(fixed) == content(ragged)
    assert sum(batch.tokens for batch in fixed.micro_batches) == fixed.totals.tokens


def test_what_fills_is_asked_nothing() -> None:
    for step in steps(6):
        asked = sum(int((batch.masked_labels != IGNORED_LABEL).sum()) for batch in step.micro_batches)
        pairs = sum(int((batch.next_sentence_labels != IGNORED_LABEL).sum()) for batch in step.micro_batches)
        assert (asked, pairs) == (step.totals.masked, step.totals.sequences)
        for batch in step.micro_batches:
            asked_at = batch.masked_positions[batch.masked_labels != IGNORED_LABEL]
            assert (asked_at < batch.tokens).all()
            assert batch.layout.tokens == len(batch.input_ids), "the offsets end at T"
            assert batch.layout.lengths.max() <= LONGEST == batch.layout.longest
            assert len(np.unique(batch.masked_positions)) == len(batch.masked_positions), "each slot is asked once"
            assert np.array_equal(batch.position_ids, batch.layout.positions)
            assert set(batch.input_ids[batch.tokens :].tolist()) <= {SPECIAL.cls}


LENGTHS = st.lists(st.integers(5, LONGEST), min_size=1, max_size=120)


@settings(max_examples=60, deadline=None)
@example([LONGEST] * 9, [5] * 100, 1, 6)
@given(st.lists(st.integers(5, LONGEST), min_size=3, max_size=300), LENGTHS, st.integers(1, 4), st.integers(1, 6))
def test_any_step_is_dealt_within_all_three_caps(known: list[int], lengths: list[int], ranks: int, tiles: int) -> None:
    """Even a step that has nothing to do with the lengths that the shape was made for."""
    shapes = shapes_for(np.array(known), global_batch=64, ranks=ranks, budget=128 * tiles)
    sizes = np.array(lengths)
    masked = MASKING.predictions(sizes)
    bins = deal_fixed(sizes, masked, ranks, shapes)
    assert len(bins) % ranks == 0
    assert len(bins) >= ranks * shapes.micro_batches
    assert sorted(np.concatenate(bins).tolist()) == list(range(len(sizes)))
    for own in bins:
        assert sizes[own].sum() <= shapes.tokens
        assert masked[own].sum() <= shapes.masked
        filled = shapes.filled(Layout.from_lengths(sizes[own]))
        assert (filled.sequences, filled.tokens, filled.longest) == (shapes.sequences, shapes.tokens, LONGEST)


def test_a_step_that_does_not_fit_takes_one_micro_batch_more() -> None:
    usual = np.full(1000, 40)
    shapes = shapes_for(usual, global_batch=100, budget=1024)
    assert [len(deal_fixed(each, MASKING.predictions(each), 1, shapes)) for each in (usual[:100], usual[:112])] == [
        shapes.micro_batches,
        shapes.micro_batches + 1,
    ]


@pytest.mark.parametrize(("global_batch", "least"), [(256, 0.9), (4096, 0.95), (65_536, 0.98)])
def test_real_lengths_of_large_steps_fill_their_shape(global_batch: int, least: float) -> None:
    """Most sequences full, one in ten drawn short: as pairs of an encyclopedia are cut."""
    draw = np.random.default_rng(1)
    lengths = np.where(draw.random(50_000) < 0.75, 128, draw.integers(5, 129, 50_000))
    shapes = FixedShapes.for_steps(
        lengths, MASKING, global_batch=global_batch, ranks=2, budget_tokens=32_768, longest=128
    )
    assert shapes.expected_fill > least
    taken = []
    for start in range(0, 40_000, global_batch)[:8]:
        step = lengths[start : start + global_batch]
        if len(step) == global_batch:
            taken.append(len(deal_fixed(step, MASKING.predictions(step), 2, shapes)) // 2)
    assert set(taken) <= {shapes.micro_batches}, "what is expected fits"


@pytest.mark.parametrize(("budget", "whole"), [(1024, 1024), (1000, 896), (255, 128)])
@pytest.mark.parametrize("global_batch", [10**9, 10**15])
def test_a_step_of_billions_of_sequences_stays_within_the_budget(global_batch: int, budget: int, whole: int) -> None:
    """Found at once, although there are as many micro-batches, and where the budget is no multiple of a tile."""
    shapes = shapes_for(np.array([30, 50, 64]), global_batch, ranks=2, budget=budget)
    assert shapes.tokens == whole
    assert 0.98 < shapes.expected_fill <= 1


def test_no_room_for_the_longest_sequence_is_said() -> None:
    with pytest.raises(BertsmithError, match="no room for a sequence of 64"):
        shapes_for(np.full(10, 40), 16, budget=100)


def test_held_out_batches_get_the_smallest_common_shape() -> None:
    batches = held_out_batches(
        make_source(), sequence_length=LONGEST, instances=30, masking=MASKING, micro_batch_tokens=400, seed=5
    )
    fixed = fix_shapes(batches, LONGEST, SPECIAL.cls)
    assert len({shape_of(batch) for batch in fixed}) == 1
    assert len(fixed[0].input_ids) == -(-max(batch.layout.tokens for batch in batches) // 128) * 128
    for before, after in zip(batches, fixed, strict=True):
        assert after.tokens == before.layout.tokens
        assert np.array_equal(after.input_ids[: after.tokens], before.input_ids)
        assert np.array_equal(after.masked_labels[: len(before.masked_labels)], before.masked_labels)
    assert fix_shapes([], LONGEST, SPECIAL.cls) == []


def test_almost_everything_masked_still_fits() -> None:
    masking = MaskingSettings(rate=0.95)
    source = order()
    shapes = FixedShapes.for_steps(
        source.epoch(0).lengths, masking, global_batch=20, ranks=1, budget_tokens=512, longest=LONGEST
    )
    batches = StepBuilder(source, 20, masking, 512, shapes=shapes).build(0).micro_batches
    assert {len(batch.masked_positions) for batch in batches} == {shapes.masked}


def test_a_micro_batch_fits_that_has_no_more_of_anything_than_the_shape() -> None:
    shapes = FixedShapes(tokens=256, sequences=8, masked=128, longest=64, micro_batches=1, expected_fill=1.0)

    def fits(*counts: int) -> bool:
        return shapes.hold(*(np.array([4, count]) for count in counts))

    assert fits(5, 100, 128), "what is left of 256 tokens takes three sequences"
    assert not fits(6, 100, 128)
    assert fits(8, 256, 128)
    assert not fits(8, 257, 128)
    assert not fits(5, 100, 129)
