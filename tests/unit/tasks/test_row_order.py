"""The steps of fine-tuning: every row once an epoch, and the same rows a step however it is cut up."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.tasks.kinds.classify import Classify
from bertsmith.tasks.objective import Order, RowStep, RowSteps
from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.sequences import Sequences
from bertsmith.tasks.task import Examples


def examples(lengths: list[int]) -> Examples:
    ids = [np.arange(length) for length in lengths]
    whole, none = np.array(lengths), np.zeros(len(lengths), np.int64)
    records = [Record("a", None, "a", f"row {row}") for row in range(len(ids))]
    sequences = Sequences(ids, whole, none, np.arange(len(ids)))
    return Examples(records, sequences, np.arange(len(lengths)) % 2, sequences.row_offsets)


def numbers(step: RowStep) -> list[np.ndarray]:
    return [each.numbers for each in step.micro_batches]


def steps(order: Order, epochs: int, done: int = 0) -> list[RowStep]:
    return list(RowSteps(order, done, epochs * order.epoch_steps))


@given(
    lengths=st.lists(st.integers(3, 40), min_size=1, max_size=60),
    batch=st.integers(1, 20),
    budget=st.integers(1, 200),
    ranks=st.integers(1, 5),
)
def test_what_a_step_holds_depends_on_neither_ranks_nor_micro_batches(
    lengths: list[int], batch: int, budget: int, ranks: int
) -> None:
    rows, task = examples(lengths), Classify(("a", "b"))
    whole = steps(Order(rows, task, 7, batch, 1_000_000), 2)
    parts = [steps(Order(rows, task, 7, batch, budget, rank, ranks), 2) for rank in range(ranks)]
    for number, expected in enumerate(whole):
        shares = [each[number] for each in parts]
        (members,) = (each.numbers for each in expected.micro_batches)
        dealt = np.concatenate([micro.numbers for share in shares for micro in share.micro_batches])
        assert sorted(dealt.tolist()) == sorted(members.tolist()), "each row of the step once"
        assert len({len(share.micro_batches) for share in shares}) == 1, "ranks that wait for each other take as many"
        for share in shares:
            said = (share.number, share.counts, share.tokens, share.where)
            assert said == (number, expected.counts, expected.tokens, expected.where)
            fits = [len(each) < 2 or np.array(lengths)[each].sum() <= budget for each in numbers(share)]
            assert all(fits)
    for epoch in range(2):
        those = whole[epoch * len(whole) // 2 : (epoch + 1) * len(whole) // 2]
        rows_of_epoch = np.concatenate([each for step in those for each in numbers(step)])
        assert sorted(rows_of_epoch.tolist()) == list(range(len(lengths)))


@given(done=st.integers(0, 14), ranks=st.integers(1, 3))
def test_steps_start_anywhere(done: int, ranks: int) -> None:
    order = Order(examples([5] * 33), Classify(("a", "b")), 7, 7, 12, ranks - 1, ranks)
    every = steps(order, 3)
    assert len(every) == 15
    for found, expected in zip(steps(order, 3, done), every[done:], strict=True):
        assert found.number == expected.number
        assert [each.tolist() for each in numbers(found)] == [each.tolist() for each in numbers(expected)]
