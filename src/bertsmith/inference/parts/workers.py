"""Who answers parts: this process, or several, each with a model of its own."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from tqdm import tqdm

from bertsmith.base import log
from bertsmith.base.errors import BertsmithError
from bertsmith.base.processes import one_thread, start_errors, start_worker, without_main_module
from bertsmith.base.stopping import leave_stopping_to_parent
from bertsmith.inference.parts.folder import PartsFolder
from bertsmith.inference.parts.part import Account, OnError, Part, PartWork, answer
from bertsmith.model.cpu.allocator import return_freed_memory
from bertsmith.tasks.reading.records import Columns, RowReader

Load = Callable[[str], PartWork]
"""Loads a model on a device; it must be importable where there are several workers."""
_LEAVE_SECONDS = 5.0


class WorkerError(Exception):
    """Our own bug in a worker, with its traceback."""


class Here:
    """This process. columns, reader, facts: as of `PartWork`."""

    def __init__(self, work: PartWork, folder: PartsFolder, on_error: OnError) -> None:
        self.columns, self.reader, self.facts = work.columns, work.reader, work.facts
        self._work, self._folder, self._on_error = work, folder, on_error

    def run(self, parts: Iterator[Part]) -> Iterator[tuple[int, Account]]:
        """Answers parts and writes them into the folder; gives the number and the account of each as it ends.

        The error of the first row in the file that has one is raised, when the parts before it are finished.
        """
        for part in parts:
            with log.as_details():
                answered = answer(self._work, part, self._on_error)
            self._folder.write(part.number, answered)
            return_freed_memory()
            yield part.number, answered.account

    def end(self) -> None:
        """Nothing is under way here when `run` has ended."""


@dataclass
class _Worker:
    """part: the number of the one that it has, None while it waits."""

    name: str
    process: BaseProcess
    pipe: Connection
    part: int | None = None


class Processes:
    """Processes of this machine, one for each device, in place of `Here`.

    A part is answered by one of them as it would be here, so it does not matter by which.
    """

    def __init__(self, workers: list[_Worker], said: tuple[Columns, type[RowReader], Mapping[str, Any]]) -> None:
        self.columns, self.reader, self.facts = said
        self._workers = workers

    def run(self, parts: Iterator[Part]) -> Iterator[tuple[int, Account]]:
        following = _next(parts)
        failed: tuple[int, BaseException] | None = None
        while True:
            for worker in self._workers:
                if worker.part is not None or failed:
                    continue
                if isinstance(following, BaseException):
                    failed = self._after_all(), following
                elif following is not None:
                    worker.part = following.number
                    _send(worker, following)
                    following = _next(parts)
            busy = [worker for worker in self._workers if worker.part is not None]
            if not busy:
                break
            for worker in _ready(busy):
                number, result = worker.part, _received(worker)
                assert number is not None
                worker.part = None
                if isinstance(result, Account):
                    yield number, result
                elif failed is None or number < failed[0]:
                    failed = number, result
        if failed:
            raise failed[1]

    def end(self) -> None:
        """Drops the parts under way: no more are written."""
        _end(self._workers)

    def _after_all(self) -> int:
        """A number behind that of every part which is under way."""
        return 1 + max((worker.part for worker in self._workers if worker.part is not None), default=-1)


Workers = Here | Processes


@contextmanager
def processes(load: Load, devices: list[str], folder: PartsFolder, on_error: OnError) -> Iterator[Processes]:
    """Starts a process for each device, and ends them all at the end. Raises BertsmithError where a model cannot be
    loaded, and for a process that cannot be started or dies, by its name."""
    context = multiprocessing.get_context("spawn")
    workers: list[_Worker] = []
    try:
        for number, device in enumerate(devices):
            ours, theirs = context.Pipe()
            args = (theirs, load, device, folder, on_error, _Log(number, log.logger.level))
            name = f"worker {number + 1} of {len(devices)}"
            with start_errors(name, "workers", "use fewer of them"), without_main_module(), one_thread():
                process = context.Process(target=_serve, args=args, daemon=True)
                process.start()
            theirs.close()
            workers.append(_Worker(name, process, ours))
        said = [_received(worker) for worker in workers]
        for each in said:
            if isinstance(each, BaseException):
                raise each
        yield Processes(workers, said[0])
    finally:
        _end(workers)


def _end(workers: list[_Worker]) -> None:
    try:
        for worker in workers:
            worker.pipe.close()  # which ends one that waits
            if worker.part is not None:
                worker.process.kill()
        for worker in workers:
            worker.process.join(_LEAVE_SECONDS)
    finally:  # at another Ctrl-C too: at its exit, Python would wait for those that are left
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()


def _next(parts: Iterator[Part]) -> Part | BaseException | None:
    """The next part, read while the workers are busy; what reading it raises comes after what they raise."""
    try:
        return next(parts, None)
    except Exception as error:
        return error


def _ready(workers: list[_Worker]) -> list[_Worker]:
    """Those that have answered, or died."""
    ready = wait([worker.pipe for worker in workers])
    return [worker for worker in workers if worker.pipe in ready]


def _send(worker: _Worker, part: Part) -> None:
    try:
        worker.pipe.send(part)
    except OSError as error:
        raise _died(worker) from error


def _received(worker: _Worker) -> Any:
    try:
        return worker.pipe.recv()
    except (EOFError, OSError) as error:
        raise _died(worker) from error


def _died(worker: _Worker) -> BertsmithError:
    worker.process.join(_LEAVE_SECONDS)
    code = worker.process.exitcode
    how = f"was killed by {signal.Signals(-code).name}" if code and code < 0 else f"ended with status {code}"
    what = f"{worker.name} (process {worker.process.pid}) {how}"
    fix = "it may have run out of memory: use fewer workers"
    return BertsmithError(what, f"part {worker.part}" if worker.part is not None else "while it loaded the model", fix)


@dataclass(frozen=True)
class _Log:
    """How a worker logs: the first one as this process does while it loads the model, all others warnings alone."""

    number: int
    level: int

    def configure(self) -> None:
        tqdm.set_lock(threading.RLock())  # tqdm's own is shared by processes, and left on the system by a killed one
        log.configure()
        log.logger.setLevel(self.level)
        if self.number:
            self.only_warnings()

    def only_warnings(self) -> None:
        if self.level > logging.DEBUG:
            log.only_warnings(f"worker {self.number + 1}: ")


def _serve(pipe: Connection, load: Load, device: str, folder: PartsFolder, on_error: OnError, logs: _Log) -> None:
    """Loads the model, says how its rows are read, and answers parts until there are none, or nobody reads them."""
    start_worker()
    leave_stopping_to_parent()
    logs.configure()
    with suppress(EOFError, ConnectionError):
        try:
            work = load(device)
        except Exception as error:
            pipe.send(_told(error))
            return
        pipe.send((work.columns, work.reader, work.facts))
        logs.only_warnings()
        here = Here(work, folder, on_error)
        while True:
            part = pipe.recv()
            try:
                ((_, account),) = here.run(iter([part]))
            except Exception as error:
                pipe.send(_told(error))
            else:
                pipe.send(account)


def _told(error: Exception) -> Exception:
    """An error as the parent raises it: wrong input as it is, our own bug with the traceback."""
    if isinstance(error, BertsmithError):
        return error
    return WorkerError("".join(traceback.format_exception(error)))
