"""What runs the parts of a preparation: worker processes of this machine. Others are `ray_cluster` and `array_jobs`.

A part is a function of its task alone that writes its own files and returns its account, so it does not matter where it
runs, when, or how often.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Protocol, Self, TypeVar

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.log import warn
from bertsmith.base.processes import default_workers, one_thread, start_errors, start_worker, without_main_module

Task = TypeVar("Task")
Result = TypeVar("Result")
# Called as each part ends with its number and its result.
Finished = Callable[[int, Any], None]

ENGINES = ("local", "ray")
_ATTEMPTS_ALONE = 2
_TASKS_AHEAD = 2


class Engine(Protocol):
    """Runs a function over tasks."""

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], finished: Finished = lambda number, _: None
    ) -> list[Result]:
        """The results in the order of the tasks, which JSON can hold.

        The first error of any part ends the run and is raised.
        """
        ...

    def once(self, name: str, make: Callable[[], object]) -> None:
        """Calls `make` in one process of the run, for what is no list of parts; returns when it is done.

        `make` does no harm when it is called again after it was cut short.
        """
        ...


def check_engine(name: str) -> None:
    """Raises BertsmithError for the name of no engine."""
    if name not in ENGINES:
        raise BertsmithError(f"engine '{name}' is not known", "engine", nearest(name, ENGINES))


class LocalEngine:
    """A pool of fresh worker processes, made when first needed; with one worker, this very process.

    A worker that is killed costs its part one more attempt. The pool ends with the context, and its workers also end
    when this process is killed.
    """

    def __init__(self, workers: int | None = None) -> None:
        self.workers = workers or default_workers()
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def _close(self, broken: bool = False) -> None:
        """broken: a worker was killed, and so are the others."""
        if self._pool is not None:
            # Python 3.11 does not end one that was just being started, and waits for it for ever.
            for process in [*(self._pool._processes or {}).values()] if broken else []:
                process.kill()
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], finished: Finished = lambda number, _: None
    ) -> list[Result]:
        """See Engine. Raises BertsmithError when workers cannot be started, or do a part alone and are killed twice."""
        results: dict[int, Result] = {}
        if self.workers == 1 or len(tasks) == 1:
            with one_thread():
                for number, task in enumerate(tasks):
                    results[number] = function(task)
                    finished(number, results[number])
            return list(results.values())
        suspects = self._together(function, tasks, results, finished)
        for number in suspects:
            results[number] = self._alone(function, tasks[number])
            finished(number, results[number])
        return [results[number] for number in range(len(tasks))]

    def once(self, name: str, make: Callable[[], object]) -> None:
        """See Engine."""
        make()

    def _together(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], results: dict[int, Result], finished: Finished
    ) -> list[int]:
        """Fills `results`; returns the tasks that were under way when a worker was killed, to be tried alone."""
        waiting, running, suspects = deque(range(len(tasks))), dict[Future[Result], int](), list[int]()
        while waiting or running:
            while waiting and len(running) < _TASKS_AHEAD * self.workers:
                number = waiting.popleft()
                try:
                    running[self._submit(function, tasks[number])] = number
                except BrokenProcessPool:
                    waiting.appendleft(number)
                    break
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            broken = not running
            for future in done:
                number = running.pop(future)
                try:
                    results[number] = future.result()
                except BrokenProcessPool:
                    suspects.append(number)
                    broken = True
                else:
                    finished(number, results[number])
            if broken:
                suspects += running.values()
                running.clear()
                self._close(broken=True)
                warn("a worker process was killed; its part is done again")
        return sorted(suspects)

    def _alone(self, function: Callable[[Task], Result], task: Task) -> Result:
        for _ in range(_ATTEMPTS_ALONE):
            try:
                return self._submit(function, task).result()
            except BrokenProcessPool:
                self._close(broken=True)
        raise BertsmithError(
            f"the worker process was killed {_ATTEMPTS_ALONE} times while it did this part alone",
            str(task),
            "it may have run out of memory: free some, or use fewer workers; finished parts are kept",
        )

    def _submit(self, function: Callable[[Task], Result], task: Task) -> Future[Result]:
        fix = "use fewer workers; finished parts are kept"
        with start_errors("a worker process", f"workers = {self.workers}", fix), without_main_module(), one_thread():
            if self._pool is None:
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self.workers, mp_context=context, initializer=start_worker)
            try:
                return self._pool.submit(function, task)
            except OSError as error:
                if self._pool._broken:  # seen while one more was being started, of Python 3.11
                    raise BrokenProcessPool from error
                raise
