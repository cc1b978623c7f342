"""Lanes and the batcher: who is computed when, that all of it is, and that a failure stays where it belongs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.inference.server import batcher
from bertsmith.inference.server.batcher import Batcher, Compute, Job, Lane, ModelFailed
from bertsmith.inference.server.limits import Limits
from bertsmith.inference.server.metrics import Metrics
from bertsmith.inference.server.refusals import Refusal
from bertsmith.tasks.sequences import Sequences

BUDGET = 64


def sequences_of(lengths: Sequence[int], mark: int = 0) -> Sequences:
    """Sequences whose tokens are their job's mark and their own number."""
    ids = [np.array([mark, number, *[0] * (length - 2)]) for number, length in enumerate(lengths)]
    counts = np.array(lengths, dtype=np.int64)
    return Sequences(ids, counts, np.zeros_like(counts), np.arange(len(ids)))


def job(*lengths: int) -> Job:
    loop = asyncio.new_event_loop()
    try:
        return Job(sequences_of(lengths), loop.create_future(), list(lengths))
    finally:
        loop.close()


def marks(sequences: Sequences) -> list[tuple[int, int, int]]:
    """What stands in for a model: the marks of each sequence, and how long its first text is, here all of it."""
    each = zip(sequences.ids, sequences.first_segments, strict=True)
    return [(int(ids[0]), int(ids[1]), int(first)) for ids, first in each]


def lane_of(*jobs: Job) -> Lane:
    lane = Lane("model", marks, BUDGET)
    for each in jobs:
        lane.add(each)
    return lane


def taken(lane: Lane, *jobs: Job) -> list[tuple[int, int, int]]:
    return [(jobs.index(part.job), part.start, part.stop) for part in lane.take()]


@pytest.mark.parametrize(("rate", "sequences"), [(0.0, 25), (1e6, 100), (480.0, 30), (1.0, 25)])
def test_a_batch_takes_a_second_at_most_but_has_a_quarter_of_the_budget(rate: float, sequences: int) -> None:
    only = job(*[16] * 200)
    lane = Lane("model", marks, 1600)
    lane.add(only)
    lane.rate = rate
    assert taken(lane, only) == [(0, 0, sequences)]


def test_a_small_batch_can_only_raise_the_speed() -> None:
    lane = Lane("model", marks, 1600)
    lane.measured(6, 1.0)  # 6 tokens/s would refuse nearly everything behind it
    assert lane.rate == 0
    lane.measured(1000, 1.0)
    assert lane.rate == 1000
    lane.measured(6, 1.0)
    assert lane.rate == 1000
    lane.measured(6, 0.003)
    assert 1000 < lane.rate < 2000
    lane.measured(200, 2.0)
    assert lane.rate < 1000


def test_a_request_of_as_many_tokens_as_a_queue_takes_is_taken() -> None:
    queues = Batcher(Limits(queue_tokens=100), Metrics())
    queues.check_room(lane_of(), 100)
    with pytest.raises(Refusal, match="this request has 101 tokens"):
        queues.check_room(lane_of(), 101)


def test_a_job_alone_fills_the_batch() -> None:
    only = job(*[16] * 6)
    lane = lane_of(only)
    assert taken(lane, only) == [(0, 0, 4)]
    assert lane.tokens == 32
    assert taken(lane, only) == [(0, 4, 6)]
    assert not lane.waiting


def test_a_long_job_leaves_half_of_the_batch_to_those_behind_it() -> None:
    long, short = job(*[16] * 20), job(16, 16, 16)
    lane = lane_of(long, short)
    assert taken(lane, long, short) == [(0, 0, 2), (1, 0, 2)]


def test_what_the_others_leave_free_goes_to_the_first() -> None:
    long, short = job(*[16] * 20), job(16)
    lane = lane_of(long, short)
    assert taken(lane, long, short) == [(0, 0, 3), (1, 0, 1)]


def test_long_jobs_take_turns_however_many_there_are() -> None:
    jobs = [job(*[4] * 10) for _ in range(20)] + [job(4)]
    lane = lane_of(*jobs)
    assert lane.tokens_before_another() == 21 * 4
    assert taken(lane, *jobs) == [(number, 0, 1) for number in range(16)]
    assert taken(lane, *jobs) == [*((number, 0, 1) for number in range(16, 21)), *((n, 1, 2) for n in range(11))]


def test_a_sequence_longer_than_the_budget_goes_alone() -> None:
    large, small = job(100), job(5)
    lane = lane_of(large, small)
    assert taken(lane, large, small) == [(0, 0, 1)]
    assert taken(lane, large, small) == [(1, 0, 1)]


def test_a_removed_job_takes_its_tokens_with_it() -> None:
    first, second = job(*[40] * 3), job(10)
    lane = lane_of(first, second)
    lane.take()
    lane.remove(first)
    lane.remove(first)
    assert lane.tokens == sum(second.lengths[second.taken :])


jobs_of_lengths = st.lists(st.lists(st.integers(2, 90), min_size=1, max_size=12), min_size=1, max_size=12)


@given(jobs_of_lengths)
def test_every_sequence_is_taken_once_in_batches_within_the_budget(lengths: list[list[int]]) -> None:
    jobs = [job(*each) for each in lengths]
    lane = lane_of(*jobs)
    seen: dict[int, list[int]] = {number: [] for number in range(len(jobs))}
    while lane.waiting:
        oldest = lane.waiting[0]
        parts = lane.take()
        assert parts[0].job is oldest  # nobody starves
        assert sum(part.tokens for part in parts) <= BUDGET or (len(parts), parts[0].stop - parts[0].start) == (1, 1)
        for part in parts:
            seen[jobs.index(part.job)] += range(part.start, part.stop)
        assert lane.tokens == sum(sum(each.lengths[each.taken :]) for each in jobs)
    assert seen == {number: list(range(len(each))) for number, each in enumerate(lengths)}


def answers(compute: Compute, lengths: list[list[int]], budget: int = BUDGET) -> list[Any]:
    """What a batcher gives for jobs that come at once; of one that fails its error."""

    async def ask() -> list[Any]:
        batcher = Batcher(Limits(), Metrics())
        lanes = [Lane("one", compute, budget), Lane("other", compute, budget)]
        batcher.start(lanes)
        asked = (batcher.outputs(lanes[n % 2], sequences_of(each, n)) for n, each in enumerate(lengths))
        try:
            return await asyncio.gather(*asked, return_exceptions=True)
        finally:
            assert batcher.close(60)

    return asyncio.run(ask())


@given(jobs_of_lengths)
def test_every_job_gets_its_own_outputs_in_order(lengths: list[list[int]]) -> None:
    expected = [[(n, place, length) for place, length in enumerate(each)] for n, each in enumerate(lengths)]
    assert answers(marks, lengths) == expected


@given(jobs_of_lengths)
def test_only_the_jobs_with_what_fails_fail(lengths: list[list[int]]) -> None:
    def failing(sequences: Sequences) -> list[Any]:
        if any(len(ids) > 80 for ids in sequences.ids):
            raise RuntimeError("too long")
        return marks(sequences)

    found = answers(failing, lengths)
    for each, answer in zip(lengths, found, strict=True):
        assert isinstance(answer, ModelFailed) == (max(each) > 80)
        assert isinstance(answer, ModelFailed) or len(answer) == len(each)


def test_a_model_that_gives_too_few_outputs_has_failed() -> None:
    (found,) = answers(lambda sequences: marks(sequences)[:-1], [[4, 4]])
    assert isinstance(found, ModelFailed)
    assert str(found.__cause__) == "the model gave 1 outputs for 2 sequences"


def test_the_thread_continues_after_an_error_outside_of_a_model() -> None:
    class Failing(Metrics):
        def waited(self, lane: Lane, seconds: float) -> None:
            raise ValueError("once")

    async def ask() -> None:
        batcher = Batcher(Limits(), Failing())
        batcher.start([lane := Lane("one", marks, BUDGET)])
        for _ in range(2):
            with pytest.raises(ModelFailed):
                await batcher.outputs(lane, sequences_of([4]))
        assert batcher.works
        assert batcher.close(60)

    asyncio.run(ask())


def test_a_batcher_that_is_closed_drops_what_waits_and_ends_after_its_batch() -> None:
    began, release, computed = threading.Event(), threading.Event(), list[int]()

    def noting(sequences: Sequences) -> list[Any]:
        began.set()
        release.wait(60)
        computed.append(len(sequences.ids))
        return marks(sequences)

    async def ask() -> None:
        batcher = Batcher(Limits(), Metrics())
        batcher.start([lane := Lane("one", noting, 10)])
        asked = asyncio.create_task(batcher.outputs(lane, sequences_of([10] * 5)))
        await asyncio.to_thread(began.wait, 60)
        assert not batcher.close(0.01), "its batch is not finished"
        release.set()
        assert batcher.close(60)
        assert not asked.done()
        asked.cancel()

    asyncio.run(ask())
    assert computed == [1]


def test_memory_is_given_back_once_after_each_time_of_work(monkeypatch: pytest.MonkeyPatch) -> None:
    freed = threading.Semaphore(0)
    monkeypatch.setattr(batcher, "_IDLE_SECONDS", 0.01)
    monkeypatch.setattr(batcher, "return_freed_memory", freed.release)

    async def ask() -> None:
        ours = Batcher(Limits(), Metrics())
        ours.start([lane := Lane("one", marks, BUDGET)])
        for _ in range(2):
            await ours.outputs(lane, sequences_of([4]))
            assert await asyncio.to_thread(freed.acquire, timeout=60)
            assert not await asyncio.to_thread(freed.acquire, timeout=0.1)
        assert ours.close(60)

    asyncio.run(ask())


def test_lanes_take_turns() -> None:
    order: list[int] = []
    release = threading.Event()

    def noting(sequences: Sequences) -> list[Any]:
        assert release.wait(60)
        order.append(int(sequences.ids[0][0]))
        return marks(sequences)

    async def ask() -> None:
        batcher = Batcher(Limits(), Metrics())
        lanes = [Lane("one", noting, 10), Lane("other", noting, 10)]
        batcher.start(lanes)
        asked = [
            asyncio.create_task(batcher.outputs(lanes[n], sequences_of([10] * count, n)))
            for n, count in ((0, 6), (1, 3))
        ]
        while not lanes[1].waiting:
            await asyncio.sleep(0)
        release.set()
        await asyncio.gather(*asked)
        assert batcher.close(60)

    asyncio.run(ask())
    assert order == [0, 1, 0, 1, 0, 1, 0, 0, 0]


@pytest.mark.parametrize("field", ["rows", "queue_seconds", "body_bytes"])
def test_limits_that_make_no_sense_are_refused(field: str) -> None:
    for wrong in (0, -1, float("nan")):
        with pytest.raises(BertsmithError, match=f"{field.replace('_', '[_-]')} is {wrong}"):
            Limits(**{field: wrong})
