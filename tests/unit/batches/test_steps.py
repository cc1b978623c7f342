"""Steps: dealt evenly within the budget, counted alike on every rank, evaluated on the same instances always."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.batches.epochs import Epochs
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.order import Order
from bertsmith.batches.packing import PretrainBatch
from bertsmith.batches.pairs import PairSettings
from bertsmith.batches.steps import StepBuilder, held_out_batches
from made_shards import MemorySource, make_shard, make_source

MASKING = MaskingSettings()


def builder(global_batch: int = 40, budget: int = 500, rank: int = 0, ranks: int = 1) -> StepBuilder:
    order = Order(Epochs(make_source(), seed=3, phase=1, sequence_length=64))
    return StepBuilder(order, global_batch, MASKING, budget, rank, ranks)


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_totals_are_those_of_all_ranks_together(ranks: int) -> None:
    steps = [builder(rank=rank, ranks=ranks).build(2) for rank in range(ranks)]
    assert len({step.totals for step in steps}) == 1
    assert len({len(step.micro_batches) for step in steps}) == 1
    batches = [batch for step in steps for batch in step.micro_batches]
    totals = steps[0].totals
    assert totals.sequences == sum(batch.layout.sequences for batch in batches) == 40
    assert totals.tokens == sum(batch.layout.tokens for batch in batches)
    assert totals.masked == sum(len(batch.masked_positions) for batch in batches)
    assert all(batch.layout.tokens <= 500 for batch in batches)


Content = list[tuple[tuple[int, ...], ...]]
ORDER = Order(Epochs(make_source(), seed=3, phase=1, sequence_length=64))


def content(batches: Iterable[PretrainBatch]) -> Content:
    """Every sequence of some micro-batches with its ids, types, masked places, labels and next-sentence label."""
    found = []
    for batch in batches:
        bounds = zip(batch.layout.offsets[:-1].tolist(), batch.layout.offsets[1:].tolist(), strict=True)
        for number, (start, end) in enumerate(bounds):
            inside = (batch.masked_positions >= start) & (batch.masked_positions < end)
            parts = (
                batch.input_ids[start:end],
                batch.token_type_ids[start:end],
                batch.position_ids[start:end],
                batch.masked_positions[inside] - start,
                batch.masked_labels[inside],
                batch.next_sentence_labels[number : number + 1],
            )
            found.append(tuple(tuple(each.tolist()) for each in parts))
    return sorted(found)


@given(
    ranks=st.integers(1, 6),
    budget=st.integers(1, 3000),
    global_batch=st.integers(6, 90),
    number=st.integers(0, 12),
)
def test_what_a_step_holds_depends_on_neither_ranks_nor_micro_batches(
    ranks: int, budget: int, global_batch: int, number: int
) -> None:
    assert ORDER.epoch_start(3) < 90 * 12, "steps straddle epochs"
    whole = StepBuilder(ORDER, global_batch, MASKING, 1_000_000).build(number)
    (batch,) = whole.micro_batches
    steps = [StepBuilder(ORDER, global_batch, MASKING, budget, rank, ranks).build(number) for rank in range(ranks)]
    assert content(each for step in steps for each in step.micro_batches) == content([batch])
    assert {(step.counts["masked"], step.counts["next_sentence"], step.tokens, step.where) for step in steps} == {
        (whole.counts["masked"], whole.counts["next_sentence"], whole.tokens, whole.where)
    }
    assert len({len(step.micro_batches) for step in steps}) == 1, "ranks that wait for each other take as many"


def test_no_two_instances_are_masked_alike() -> None:
    """Neither of one shard, nor of two that are equal, nor one instance in two epochs."""
    source, single = MemorySource({"train": [make_shard([[62] * 30])] * 2}), PairSettings(0.0, 0.0, single=True)
    order = Order(Epochs(source, seed=3, phase=1, sequence_length=64, pairs=single))
    (batch,) = StepBuilder(order, 120, MaskingSettings(special_pieces=2), 1_000_000).build(0).micro_batches
    assert set(batch.layout.lengths.tolist()) == {64}
    assert len(np.unique(batch.masked_positions.reshape(120, -1) % 64, axis=0)) == 120


def test_a_step_is_masked_at_its_own_rate() -> None:
    moving = MaskingSettings(rate=0.5, final_rate=0.1, run_steps=5)
    for number, rate in ((0, 0.5), (4, 0.1)):
        step = StepBuilder(ORDER, 40, moving, 1_000_000).build(number)
        assert len(step.micro_batches[0].masked_labels) == step.totals.masked
        assert step.totals.masked == pytest.approx(rate * step.tokens, rel=0.05)


def test_ranks_get_about_the_same_work() -> None:
    tokens = [
        sum(batch.layout.tokens for batch in builder(200, 1000, rank, 4).build(0).micro_batches) for rank in range(4)
    ]
    assert max(tokens) - min(tokens) <= 64 * 2


def test_a_step_says_which_epochs_begin_in_it() -> None:
    steps = builder(global_batch=150)
    size = steps.order.epoch(0).size
    begun = {
        number: step.started_epochs for number in range(size // 150 + 2) if (step := steps.build(number)).started_epochs
    }
    assert list(begun) == [0, -(-size // 150) - (size % 150 != 0)]
    assert [epoch for each in begun.values() for epoch, _ in each] == [0, 1]
    assert begun[0][0][1] == steps.order.epoch(0).account


def test_a_global_batch_may_be_larger_than_several_epochs() -> None:
    steps = builder(global_batch=2000)
    step = steps.build(0)
    assert step.totals.sequences == 2000
    assert [epoch for epoch, _ in step.started_epochs] == list(range(len(step.started_epochs)))
    assert len(step.started_epochs) > 2


def test_more_ranks_than_sequences_are_said() -> None:
    with pytest.raises(BertsmithError, match="4 ranks"):
        builder(global_batch=3, ranks=4)


def held_out(source: MemorySource, instances: int, budget: int = 400, seed: int = 5) -> list[PretrainBatch]:
    return held_out_batches(
        source, sequence_length=64, instances=instances, masking=MASKING, micro_batch_tokens=budget, seed=seed
    )


def test_held_out_batches_are_the_same_at_every_call_and_fit_the_budget() -> None:
    one, two = held_out(make_source(), 12), held_out(make_source(), 12)
    assert sum(batch.layout.sequences for batch in one) == 12
    assert all(batch.layout.tokens <= 400 for batch in one)
    assert [batch.input_ids.tolist() for batch in one] == [batch.input_ids.tolist() for batch in two]
    assert [batch.input_ids.tolist() for batch in held_out(make_source(), 12, seed=6)] != [
        batch.input_ids.tolist() for batch in one
    ]


def test_held_out_batches_show_held_out_documents_only() -> None:
    source = MemorySource(
        {"train": [make_shard([[9] * 9] * 9)], "held_out": [make_shard([[4] * 7] * 7, first_id=50_000)]}
    )
    labels = np.concatenate([batch.masked_labels for batch in held_out(source, 4)])
    assert labels.min() >= 50_000


def test_fewer_held_out_instances_than_asked_for_is_said(caplog: pytest.LogCaptureFixture) -> None:
    source = make_source()
    batches = held_out(source, 100_000)
    there = sum(batch.layout.sequences for batch in batches)
    assert 0 < there < 100_000
    assert f"{there:,} held-out instances, not 100,000" in caplog.text


def test_no_held_out_document_is_an_error() -> None:
    with pytest.raises(BertsmithError, match="no held_out documents"):
        held_out(MemorySource({"train": [make_shard([[3]])], "held_out": []}), 5)
