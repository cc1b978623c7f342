"""Steps built ahead of their use, in order."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import KW_ONLY, dataclass
from functools import partial
from itertools import islice
from typing import Self

from bertsmith.base.log import say
from bertsmith.batches.builders import BuilderProcesses, Builders, BuilderThread
from bertsmith.batches.order import Order
from bertsmith.batches.steps import Step, StepBuilder

_AHEAD = 2
WaitFor = Callable[[Callable[[float], bool]], None]
"""Is given what waits so many seconds at most and tells whether there is no more to wait for; returns when that is so,
or raises."""


def await_index(order: Order, index: Callable[[], object], wait_for: WaitFor) -> None:
    """Waits for what `index` reads or draws of an order, in a thread, which ends early where `wait_for` raises."""
    with ThreadPoolExecutor(1, thread_name_prefix="index") as thread:
        made = thread.submit(index)

        def is_there(seconds: float) -> bool:
            if not wait([made], seconds).done:
                return False
            made.result()  # raises what failed, while other ranks may still wait
            return True

        try:
            wait_for(is_there)
        except BaseException:
            order.stop_waiting()
            raise


@dataclass
class Loader:
    """Iterates once over steps `start_step` to `stop_step` (from 0, the last one excluded), built ahead of time.

    workers: 0 builds in a thread of this process, N in N separate processes; the steps are the same. At most two steps
    per thread or process are ready or being built. waited_seconds: the total time that the caller has waited for steps.
    wait_for: waits for the index of an epoch; all ranks call it before the same steps.
    Use it in a `with` block, or call `close`, to end the builders. An error during the building of a step is raised in
    place of that step. The first rank logs the account of each epoch that starts.
    """

    builder: StepBuilder
    _: KW_ONLY
    start_step: int
    stop_step: int
    workers: int = 0
    wait_for: WaitFor | None = None

    def __post_init__(self) -> None:
        self.order = self.builder.order
        self.waited_seconds = 0.0
        self._steps = self._run()

    def __iter__(self) -> Iterator[Step]:
        return self._steps

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the thread or the processes and the iteration. A second call does nothing."""
        self._steps.close()
        self.order.close()  # where no step was asked for, nothing has closed it

    def _run(self) -> Generator[Step, None, None]:
        numbers = iter(range(self.start_step, self.stop_step))
        waiting: deque[Callable[[], Step]] = deque()
        start, finished = time.perf_counter(), False
        builders: Builders = (
            BuilderProcesses(self.builder, self.workers) if self.workers else BuilderThread(self.builder)
        )
        try:
            if self.start_step < self.stop_step:
                self._reach(self.start_step)
            waiting.extend(map(builders.submit, islice(numbers, _AHEAD * max(self.workers, 1))))
            while waiting:
                step = waiting.popleft()()
                waiting.extend(map(builders.submit, islice(numbers, 1)))
                self.waited_seconds += time.perf_counter() - start
                self._log_epochs(step)
                yield step
                start = time.perf_counter()
                if step.ends_epoch and waiting:
                    self._reach(step.number + 1)
            finished = True
        finally:
            self.order.stop_waiting()
            builders.close()
            self.order.close(finished)

    def _reach(self, number: int) -> None:
        """Waits for the indices that a step needs."""
        if self.wait_for is not None:
            await_index(self.order, partial(self.builder.reach, number), self.wait_for)

    def _log_epochs(self, step: Step) -> None:
        """Of ten epochs and more every tenth, of a hundred every hundredth: a small corpus may have several a step."""
        for epoch, account in step.started_epochs if self.builder.rank == 0 else ():
            every = 10 ** (len(str(epoch)) - 1)
            if epoch % every == 0:
                fewer = f"; from here on every {every}th epoch is logged" if epoch == every > 1 else ""
                say(f"epoch {epoch} (phase {self.order.epochs.phase}): {account}{fewer}")
