"""Builders of steps ahead of their use: a thread of this process, or separate processes.

Each process has its own pipe and nothing is shared, so a killed one leaves no lock behind. A process ends when its pipe
is closed, and so when the run ends, however it ends.
"""

from __future__ import annotations

import atexit
import multiprocessing
import traceback
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import Connection
from typing import Protocol

from bertsmith.base.errors import BertsmithError
from bertsmith.base.processes import start_errors, without_main_module
from bertsmith.base.stopping import leave_stopping_to_parent
from bertsmith.batches.steps import Step, StepBuilder

# How long a process in the middle of a step has to finish it.
_LEAVE_SECONDS = 5.0
_PROCESS = "a process that builds batches"
_FIX = "memory may have run out: use fewer workers, or 0 for a thread of the main process"


class Builders(Protocol):
    """Builds submitted steps. `submit` returns at once; the function that it returns waits for the step."""

    def submit(self, number: int) -> Callable[[], Step]: ...

    def close(self) -> None: ...


class BuilderThread:
    """One thread of this process."""

    def __init__(self, builder: StepBuilder) -> None:
        self._build = builder.build
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="batches")

    def submit(self, number: int) -> Callable[[], Step]:
        return self._executor.submit(self._build, number).result

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)


class FailedInProcess(Exception):
    """Carries the traceback of an error in a builder process, as the cause of the error raised here."""


class BuilderProcesses:
    """Processes that build steps in turn. Wait for the steps in the order in which they were submitted."""

    def __init__(self, builder: StepBuilder, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._builder, self._where = builder, f"workers = {processes}"
        # It waits for indices, so that who submits a step never does.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._pipes: list[Connection] = []
        self._processes = []
        self._submitted = 0
        atexit.register(self.close)
        for _ in range(processes):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(builder, theirs), daemon=True)
            try:
                with start_errors(_PROCESS, self._where, _FIX), without_main_module():
                    process.start()
            except BertsmithError:
                self.close()
                raise
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def submit(self, number: int) -> Callable[[], Step]:
        pipe = self._pipes[self._submitted % len(self._pipes)]
        self._submitted += 1
        return partial(self._receive, pipe, self._thread.submit(self._send, pipe, number))

    def _send(self, pipe: Connection, number: int) -> None:
        """Has the process build a step whose index is then in the cache folder, so that no process builds that."""
        self._builder.reach(number)
        try:
            pipe.send(number)
        except OSError as error:
            raise self._killed() from error

    def _receive(self, pipe: Connection, sent: Future[None]) -> Step:
        sent.result()
        try:
            answer = pipe.recv()
        except (EOFError, OSError) as error:
            raise self._killed() from error
        if isinstance(answer, Step):
            return answer
        raised, trace = answer
        raise raised from FailedInProcess(trace)

    def _killed(self) -> BertsmithError:
        return BertsmithError(f"{_PROCESS} was killed", self._where, _FIX)

    def close(self) -> None:
        atexit.unregister(self.close)
        self._thread.shutdown(wait=True, cancel_futures=True)
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_LEAVE_SECONDS)
            process.kill()  # nothing, of one that has ended
            process.join()


def _serve(builder: StepBuilder, pipe: Connection) -> None:
    """Builds the steps whose numbers arrive in the pipe, until it is closed."""
    leave_stopping_to_parent()  # the run still needs its steps until it has saved
    try:
        while True:
            number = pipe.recv()
            pipe.send(_build(builder, number))
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return


def _build(builder: StepBuilder, number: int) -> Step | tuple[Exception, str]:
    """The step, or an error that can be pickled and its traceback."""
    try:
        return builder.build(number)
    except BertsmithError as error:
        return error, traceback.format_exc()
    except Exception as error:  # any error: the run waits for this step, and not every error can be pickled
        return RuntimeError(f"step {number} could not be built: {error!r}"), traceback.format_exc()
