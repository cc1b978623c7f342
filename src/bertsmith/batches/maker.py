"""The process beside a rank that makes epochs ahead of their use: it ends when the rank does."""

from __future__ import annotations

import atexit
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import warn
from bertsmith.base.processes import without_main_module
from bertsmith.base.stopping import leave_stopping_to_parent
from bertsmith.batches.epoch_files import EpochFiles
from bertsmith.batches.epoch_index import visiting_order
from bertsmith.batches.epochs import Epochs
from bertsmith.batches.shares import Share

PATIENCE_SECONDS = 120.0
"""How long nothing new may come from other ranks until what is missing is drawn without them."""
_MOST_STARTS = 3
# How long to wait before a folder is looked at again: longer each time, since hundreds of ranks may look at one disk.
_POLL_SECONDS, _POLL_GROWTH, _MOST_POLL_SECONDS = 0.02, 1.3, 2.0
# How long a process that draws a shard has to finish it.
_LEAVE_SECONDS = 5.0


class Maker:
    """The process beside a rank. It is started when it is first asked for something, and again if it is killed.

    why_not: why it does nothing any more, or "".
    """

    def __init__(self, epochs: Epochs, share: Share) -> None:
        self._epochs, self._share = epochs, share
        self._lock = threading.Lock()
        self._waiting: list[int] = []
        self._pipe: Connection | None = None
        self._process: BaseProcess | None = None
        self._starts = 0
        self._closed = False
        self.why_not = ""

    def is_at(self, epoch: int) -> bool:
        """Whether it was asked for an epoch and has not finished it."""
        with self._lock:
            return epoch in self._waiting

    def ask_for(self, epoch: int) -> None:
        """Lets it make what is missing of an epoch."""
        with self._lock:
            if epoch in self._waiting or self.why_not or self._closed:
                return
            self._waiting.append(epoch)
            if self._pipe is None:
                self._start()
            else:
                self._send(epoch)

    def close(self) -> None:
        """Ends the process."""
        atexit.unregister(self.close)
        with self._lock:
            self._closed = True
            process = self._process
            if self._pipe is not None:
                self._send(None)  # a pipe that a thread reads from cannot be closed
        if process is not None:
            process.join(_LEAVE_SECONDS)
            process.kill()  # nothing, of one that has ended
            process.join()

    def _start(self) -> None:
        """Starts a process that does what is waited for; gives up where none can be started, or all were killed."""
        if self._starts == _MOST_STARTS:
            return self._give_up(f"the process that builds it was killed {_MOST_STARTS} times")
        self._starts += 1
        atexit.register(self.close)
        context = multiprocessing.get_context("spawn")
        try:
            with without_main_module():
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(self._epochs, self._share, theirs), daemon=True)
                process.start()
        except (OSError, AssertionError) as error:  # AssertionError: a daemonic process may not have children
            return self._give_up(f"no process for it could be started ({error})")
        self._pipe, self._process = ours, process
        theirs.close()
        for epoch in self._waiting:
            self._send(epoch)
        threading.Thread(target=self._listen, args=(ours,), daemon=True, name="index ahead").start()

    def _send(self, epoch: int | None) -> None:
        assert self._pipe is not None
        with suppress(OSError):  # it was killed; the thread that listens starts another
            self._pipe.send(epoch)

    def _listen(self, pipe: Connection) -> None:
        """Takes in what the process has done, until it ends."""
        while True:
            try:
                epoch, failed = pipe.recv()
            except (EOFError, OSError):
                break
            with self._lock:
                if epoch in self._waiting:
                    self._waiting.remove(epoch)
                if failed:
                    return self._give_up(failed)
        with self._lock:
            if not self._closed:
                self._died()

    def _died(self) -> None:
        assert self._process is not None
        self._process.join()
        self._pipe = None
        if self._waiting:
            warn(
                f"the process that builds the index of epoch {self._waiting[0]} ahead ended with status "
                f"{self._process.exitcode}; another one is started"
            )
            self._start()

    def _give_up(self, why: str) -> None:
        self.why_not = why
        self._waiting.clear()
        warn(f"the next epoch's index cannot be built ahead, so training will wait for it: {why}")


def _serve(epochs: Epochs, share: Share, pipe: Connection) -> None:
    """The process: makes the epochs whose numbers come through the pipe, until None comes or the rank ends."""
    leave_stopping_to_parent()
    parent = multiprocessing.parent_process()
    assert parent is not None
    asked: list[int] = []

    def look(seconds: float | None) -> None:
        """Waits so long, at most until something comes. Raises EOFError when the rank has left."""
        ready = wait([pipe, parent.sentinel], seconds)
        if parent.sentinel in ready:
            raise EOFError
        if pipe in ready:
            try:
                asked.append(pipe.recv())
            except OSError as error:
                raise EOFError from error
            if asked[-1] is None:
                raise EOFError

    try:
        while True:
            while not asked:
                look(None)
            pipe.send((asked[0], _made(epochs, share, asked[0], look)))
            asked.pop(0)
    except (EOFError, OSError):
        return


def _made(epochs: Epochs, share: Share, epoch: int, look: Callable[[float], None]) -> str:
    """Draws a rank's share of an epoch, and its index if it leads; what hindered it, or "". look: called in between."""
    files, stream = epochs.files, epochs.stream(epoch)
    assert files is not None
    ours = share.of(visiting_order(stream, files.shards))

    def draw(shards: Sequence[int]) -> None:
        for shard in missing_of(files, epoch, shards):
            look(0)
            files.write_shard(epoch, shard, epochs.draw(epoch, shard).instances)

    try:
        draw(ours)
        if share.leads:
            _gather(epochs, epoch, lambda others: draw(range(files.shards) if others else ours), look)
    except BertsmithError as error:
        return f"{error.what} ({error.where})"
    except EOFError:
        raise
    except Exception as error:  # any error: the rank will do it by itself, and meet the same one where it can be shown
        return repr(error)
    return ""


def _gather(epochs: Epochs, epoch: int, draw: Callable[[bool], None], look: Callable[[float], None]) -> None:
    """Writes the index when all shards are there, whoever draws them.

    draw: again what has been removed meanwhile: of this rank's share, or of that of others too (True), where nothing
    new has come from them for PATIENCE_SECONDS.
    """
    files = epochs.files
    assert files is not None
    seen, since = -1, time.monotonic()
    for pause in pauses():
        if files.index_path(epoch).exists():
            return
        there = len(files.shards_there(epoch))
        if there == files.shards:
            return files.write_index(epochs.collected(epoch))
        if there != seen:
            seen, since = there, time.monotonic()
        draw(time.monotonic() - since > PATIENCE_SECONDS)
        look(pause)


def pauses() -> Iterator[float]:
    """Seconds between two looks at a folder, without end."""
    pause = _POLL_SECONDS
    while True:
        yield pause
        pause = min(pause * _POLL_GROWTH, _MOST_POLL_SECONDS)


def missing_of(files: EpochFiles, epoch: int, shards: Sequence[int]) -> list[int]:
    """Those of the shards whose instances are not kept."""
    there = files.shards_there(epoch)
    return [shard for shard in shards if shard not in there]
