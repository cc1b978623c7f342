"""Steps built ahead of their use, by a thread or by processes, in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import KW_ONLY, dataclass
from types import TracebackType
from typing import Self

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.order import Order
from bertsmith.batches.steps import Step, StepBuilder

_AHEAD = 2
_builder: StepBuilder | None = None


@dataclass
class Loader:
    """Gives steps `start_step` to `stop_step` (from 0 on, the last one excluded) once, in order, built ahead.

    workers: 0 builds in a thread of this process, N in N processes of their own; the steps are the same. At most two
    steps (N + 1 with processes) lie ready or are being built. waited_seconds: how long the steps given so far were
    waited for. Use it in a `with` block, or call `close`: what builds ahead then ends. An error while a step is built
    is raised where the step would have come.
    """

    order: Order
    _: KW_ONLY
    global_batch: int
    masking: MaskingSettings
    micro_batch_tokens: int
    start_step: int
    stop_step: int
    rank: int = 0
    ranks: int = 1
    workers: int = 0

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise BertsmithError(
                f"workers is {self.workers}", "batches", "use 0 for a thread, or a number of processes"
            )
        self._builder = StepBuilder(
            self.order, self.global_batch, self.masking, self.micro_batch_tokens, self.rank, self.ranks
        )
        self.waited_seconds = 0.0
        self._steps = self._run()

    def __iter__(self) -> Iterator[Step]:
        return self._steps

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the thread or the processes; no further step is given. A second call does nothing."""
        self._steps.close()

    def _start(self) -> Executor:
        if not self.workers:
            return ThreadPoolExecutor(1, thread_name_prefix="batches")
        # The index is then in the cache folder before the processes look for it.
        self.order.instances(self.start_step * self.global_batch, 1)
        spawn = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(self.workers, spawn, initializer=_work_for, initargs=(self._builder,))

    def _run(self) -> Generator[Step, None, None]:
        ahead: deque[Future[Step]] = deque()
        depth = self.workers + 1 if self.workers else _AHEAD
        following = self.start_step
        began = time.perf_counter()
        executor = self._start()
        try:
            while following < self.stop_step or ahead:
                while following < self.stop_step and len(ahead) < depth:
                    build = _build if self.workers else self._builder.build
                    ahead.append(executor.submit(build, following))
                    following += 1
                step = ahead.popleft().result()
                self.waited_seconds += time.perf_counter() - began
                self._tell(step)
                yield step
                began = time.perf_counter()
        except BrokenProcessPool as error:
            raise BertsmithError(
                "a process that builds batches was killed",
                f"workers = {self.workers}",
                "memory may have run out: use fewer workers, or 0 for a thread of this process",
            ) from error
        finally:
            executor.shutdown(wait=True, cancel_futures=True)

    def _tell(self, step: Step) -> None:
        if self.rank == 0:
            for epoch, account in step.begun:
                say(f"epoch {epoch} (phase {self.order.phase}): {account}")


def _work_for(builder: StepBuilder) -> None:
    """Makes this process a builder of steps that ends when its parent does, and at nothing else."""
    global _builder
    _builder = builder
    # Ctrl-C and a scheduler's SIGTERM reach the whole group; the parent ends us when it has saved.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_leave_with_parent, daemon=True).start()


def _leave_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _build(number: int) -> Step:
    assert _builder is not None
    return _builder.build(number)
