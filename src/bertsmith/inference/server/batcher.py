"""Continuous batching: what has gathered while one batch was computed is the next one, up to a budget of tokens.

Each way of running a model is a lane with a queue. One thread computes for all lanes, a batch of each in turn, so that
models share the processor fairly. Nothing waits for a batch to fill. Legend: S sequences of a job.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from bertsmith.inference.server.limits import Limits
from bertsmith.inference.server.refusals import Refusal, overloaded
from bertsmith.model.cpu.allocator import return_freed_memory
from bertsmith.tasks.sequences import Sequences

Compute = Callable[[Sequences], Sequence[Any]]
_IDLE_SECONDS = 2.0  # without a job, after which memory that was freed is given back to the system
_BATCH_SECONDS = 1.0
"""Where a batch of the whole budget takes longer than this, it is made smaller: who comes while one is computed waits
for all of it."""
_LEAST_TOKENS, _LEAST_SHARE = 256, 4
"""But a batch may have so many tokens, or the budget divided by this: smaller ones would not be much faster."""
_SHARES = 16, 8, 4, 2, 1
"""Each job gets at most a sixteenth of a batch at first; what is left is shared by eighths, quarters and halves. So up
to 16 long requests delay a new one by no more than a batch."""
_MEMORY = 0.8  # share of the earlier speed in the running mean


class ModelFailed(Exception):
    """A model could not compute sequences. Its cause is what was raised."""


@dataclass(eq=False)
class Job:
    """The sequences of a request. taken: how many of them are computed or in a batch. tokens: of the others. outputs:
    of those that are computed, in order."""

    sequences: Sequences
    done: asyncio.Future[list[Any]]
    lengths: list[int]
    taken: int = 0
    outputs: list[Any] = field(default_factory=list)
    error: ModelFailed | None = None
    since: float = field(default_factory=time.monotonic)
    tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = sum(self.lengths)


@dataclass(frozen=True)
class Part:
    """The sequences `start` to `stop` of a job."""

    job: Job
    start: int
    stop: int

    @property
    def tokens(self) -> int:
        return sum(self.job.lengths[self.start : self.stop])


class Observer(Protocol):
    """Counts batches and waits; called by the computing thread."""

    def batch(self, lane: Lane, sequences: int, tokens: int, seconds: float) -> None: ...

    def waited(self, lane: Lane, seconds: float) -> None: ...


class Lane:
    """A queue of jobs for one way of running a model.

    compute: gives the output of each sequence, [S], whatever stands beside it. tokens: waiting. rate: tokens/s of late
    in batches that were not small, 0 before the first of these.
    """

    def __init__(self, model: str, compute: Compute, budget_tokens: int) -> None:
        self.model, self.compute, self.budget_tokens = model, compute, budget_tokens
        self._least_tokens = min(budget_tokens, max(_LEAST_TOKENS, budget_tokens // _LEAST_SHARE))
        self.waiting: deque[Job] = deque()
        self.tokens = 0
        self.rate = 0.0

    def add(self, job: Job) -> None:
        self.waiting.append(job)
        self.tokens += job.tokens

    def remove(self, job: Job) -> None:
        """Takes a job out of the queue, if it is still there."""
        if job in self.waiting:
            self.waiting.remove(job)
            self.tokens -= job.tokens

    @property
    def room(self) -> int:
        """The most tokens of the next batch."""
        return min(self.budget_tokens, max(self._least_tokens, int(_BATCH_SECONDS * self.rate)))

    def tokens_before_another(self, tokens: int = 0) -> int:
        """About how many tokens of the jobs that wait are computed before a new one has had so many of its own (0:
        before its turn). Jobs share batches, so each counts with its share, or as many tokens as the new one, at most.
        """
        share = max(self.room // _SHARES[0], tokens)
        return sum(min(job.tokens, max(share, job.lengths[job.taken])) for job in self.waiting)

    def take(self) -> list[Part]:
        """The next batch: as many tokens as the budget has, or a second computes. The jobs share it, the oldest first,
        and those that it does not finish go behind the others, so that long requests hold nobody up. A sequence that is
        longer than the batch may be goes alone."""
        room = self.room
        starts: dict[Job, int] = {}
        used: dict[Job, int] = {}
        for share in [room // shares for shares in _SHARES]:
            if room <= 0:
                break
            for job in self.waiting:
                while job.taken < len(job.lengths):
                    length, mine = job.lengths[job.taken], used.get(job, 0)
                    if starts and (length > room or (mine and mine + length > share)):
                        break
                    starts.setdefault(job, job.taken)
                    used[job] = mine + length
                    room -= length
                    job.taken += 1
                    job.tokens -= length
        self.tokens -= sum(used.values())
        unfinished = [job for job in self.waiting if job.taken < len(job.lengths)]
        self.waiting = deque(sorted(unfinished, key=lambda job: job in starts))  # else in the order they had
        return [Part(job, start, job.taken) for job, start in starts.items()]

    def measured(self, tokens: int, seconds: float) -> None:
        """Brings the speed up to date. A small batch takes nearly as long as a larger one, so that it only tells the
        least that the speed can be: what waits for it goes together."""
        rate = tokens / max(seconds, 1e-6)
        if tokens < self._least_tokens // 2 and not 0 < self.rate < rate:
            return
        self.rate = _MEMORY * self.rate + (1 - _MEMORY) * rate if self.rate else rate


class Batcher:
    """The computing thread, and the queues before it. Its methods are called from the event loop's thread."""

    def __init__(self, limits: Limits, observer: Observer) -> None:
        self._limits, self._observer = limits, observer
        self.lanes: list[Lane] = []
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="compute", daemon=True)

    def start(self, lanes: Sequence[Lane]) -> None:
        """Begins to compute for these lanes."""
        self.lanes = list(lanes)
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def close(self, seconds: float) -> bool:
        """Drops what waits, and gives the thread so long to finish its batch. Whether it has ended."""
        with self._changed:
            self._closed = True
            for lane in self.lanes:
                lane.waiting.clear()
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(seconds)
        return not self._thread.is_alive()

    @property
    def works(self) -> bool:
        """Whether the computing thread is there."""
        return self._thread.is_alive()

    def wait_seconds(self) -> float:
        """How long what waits will take, as far as the speed is known."""
        return sum(lane.tokens / lane.rate for lane in self.lanes if lane.rate)

    def _seconds_until(self, lane: Lane, tokens: int) -> float:
        """How long a job that comes to a lane now will wait for its turn, or until so many of its tokens are computed,
        as far as the speed is known: the lanes compute a batch each in turn."""
        tokens += lane.tokens_before_another(tokens)
        batches = 1 + tokens // lane.room
        others = (
            min(each.tokens, batches * each.room) / each.rate for each in self.lanes if each is not lane and each.rate
        )
        return (tokens / lane.rate if lane.rate else 0.0) + sum(others)

    def check_room(self, lane: Lane, tokens: int) -> None:
        """Raises Refusal where so many more tokens may not wait: 429, or 413 for what never could."""
        limits = self._limits
        if tokens > limits.queue_tokens:
            what = f"this request has {tokens:,} tokens, and a queue takes {limits.queue_tokens:,}"
            raise Refusal(413, f"{what}; send fewer rows at a time")
        if not lane.waiting:
            return
        if len(lane.waiting) >= limits.queue_requests or lane.tokens + tokens > limits.queue_tokens:
            raise overloaded(self.wait_seconds())
        with self._changed:
            turn, end = self._seconds_until(lane, 0), self._seconds_until(lane, tokens)
        if turn > limits.queue_seconds:
            raise overloaded(turn)
        if end > limits.request_seconds:  # all that share the batches with it would come too late, too
            raise overloaded(end - limits.request_seconds)

    async def outputs(self, lane: Lane, sequences: Sequences) -> list[Any]:
        """What the lane gives for each of the sequences: [S].

        A caller that is cancelled leaves the queue. Raises Refusal as `check_room`, and ModelFailed where `compute`
        fails for these sequences by themselves.
        """
        job = Job(sequences, asyncio.get_running_loop().create_future(), sequences.lengths.tolist())
        self.check_room(lane, job.tokens)
        with self._changed:
            lane.add(job)
            self._changed.notify()
        try:
            return await job.done
        finally:
            with self._changed:
                lane.remove(job)

    def _work(self) -> None:
        turn, has_freed = 0, False
        while True:
            with self._changed:
                while not any(lane.waiting for lane in self.lanes):
                    if self._closed:
                        return
                    if not self._changed.wait(_IDLE_SECONDS if has_freed else None):
                        return_freed_memory()
                        has_freed = False
                order = (self.lanes[(turn + step) % len(self.lanes)] for step in range(len(self.lanes)))
                lane = next(each for each in order if each.waiting)
                turn = self.lanes.index(lane) + 1
                parts, has_freed = lane.take(), True
            try:
                for part in parts:
                    if part.start == 0:
                        self._observer.waited(lane, time.monotonic() - part.job.since)
                self._compute(lane, parts)
            except Exception as error:  # the thread continues, whatever happens
                for part in parts:
                    self._fail(lane, part.job, error)
            with suppress(RuntimeError):  # the loop is closed, and nobody waits any more
                self._loop.call_soon_threadsafe(_deliver, [part.job for part in parts])

    def _compute(self, lane: Lane, parts: Sequence[Part]) -> None:
        """Gives each job its outputs; where a batch fails, its parts are computed alone, so that only those fail which
        are at fault."""
        began = time.perf_counter()
        try:
            outputs = list(lane.compute(_joined(parts)))
            if len(outputs) != (wanted := sum(part.stop - part.start for part in parts)):
                raise RuntimeError(f"the model gave {len(outputs)} outputs for {wanted} sequences")
        except Exception as error:
            if len(parts) > 1:
                for part in parts:
                    self._compute(lane, [part])
            else:
                self._fail(lane, parts[0].job, error)
            return
        seconds, tokens = time.perf_counter() - began, sum(part.tokens for part in parts)
        lane.measured(tokens, seconds)
        self._observer.batch(lane, len(outputs), tokens, seconds)
        place = 0
        for part in parts:
            part.job.outputs += outputs[place : place + part.stop - part.start]
            place += part.stop - part.start

    def _fail(self, lane: Lane, job: Job, error: Exception) -> None:
        job.error = ModelFailed()
        job.error.__cause__ = error
        with self._changed:
            lane.remove(job)


def _joined(parts: Sequence[Part]) -> Sequences:
    """The sequences of all parts as one, each a row of its own."""
    ids = [each for part in parts for each in part.job.sequences.ids[part.start : part.stop]]
    firsts = np.concatenate([part.job.sequences.first_segments[part.start : part.stop] for part in parts])
    return Sequences(ids, firsts, np.zeros_like(firsts), np.arange(len(ids)))


def _deliver(jobs: Sequence[Job]) -> None:
    """Ends the wait for jobs that are computed or have failed."""
    for job in jobs:
        if job.done.done():
            continue
        if job.error is not None:
            job.done.set_exception(job.error)
        elif len(job.outputs) == len(job.lengths):
            job.done.set_result(job.outputs)
