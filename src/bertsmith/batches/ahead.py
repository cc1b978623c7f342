"""Epochs made by all ranks together, the next one ahead of its use: by a process of its own beside every rank.

Every rank draws the instances of its share of the shards and keeps them in the folder that all of them see; the one
that leads makes the index of them. For the first epoch the ranks do this themselves and wait for each other; while an
epoch is trained on, a process beside each of them does it for the next one, and ends when the rank does.
"""

from __future__ import annotations

import atexit
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import Progress, duration, warn
from bertsmith.base.stopping import leave_stopping_to_parent
from bertsmith.batches.epoch_files import EpochFiles
from bertsmith.batches.epochs import WINDOW_INSTANCES, EpochIndex, visiting_order
from bertsmith.batches.shares import Share
from bertsmith.corpus.engines.local import without_main_module

if TYPE_CHECKING:
    from bertsmith.batches.order import Order

PATIENCE_SECONDS = 120.0
"""How long nothing new may come from other ranks until a rank draws what is missing by itself."""
_MOST_STARTS = 3
# How long to wait before a folder is looked at again: longer each time, since hundreds of ranks may look at one disk.
_POLL_SECONDS, _POLL_GROWTH, _MOST_POLL_SECONDS = 0.02, 1.3, 2.0
# How long a process that draws a shard has to finish it.
_LEAVE_SECONDS = 5.0


class Ahead:
    """One rank's part in the epochs of an order.

    end: the position at which training ends, so that no later epoch is made. in_foreground: the epochs whose instances
    this rank drew, in part or all, while it waited for them.
    """

    def __init__(self, order: Order, files: EpochFiles, share: Share, end: int) -> None:
        self._order, self._files, self._share, self._end = order, files, share, end
        self._maker = _Maker(order, share)
        self.in_foreground: list[int] = []

    def index(self, epoch: int) -> EpochIndex:
        """The index of an epoch: waited for if it was asked for before, else made now, together with all ranks."""
        found = self._files.read_index(self._order.stream(epoch))
        if found is None and self._maker.is_at(epoch):
            found = self._awaited(epoch)
        if found is None and self._drawn_share(epoch):
            found = self._awaited(epoch)
        if found is None:
            self._drawn_here(epoch)
            found = self._order.build(epoch)
        return found

    def started(self, epoch: int) -> None:
        """Training has come to an epoch, whose index is there: asks for the next one, and drops what is past."""
        if self._share.leads:
            self._files.forget_instances(before=epoch - 1)
        order = self._order
        # Few instances are all held in memory; of many, what is not on disk would be drawn by every process again.
        wanted = [epoch] if order.epoch(epoch).size > WINDOW_INSTANCES else []
        wanted += [epoch + 1] if order.epoch_start(epoch + 1) < self._end else []
        for each in wanted:
            if self._share.place is not None and not self._files.are_whole(each):
                self._maker.ask_for(each)

    def close(self, finished: bool) -> None:
        """Ends the process. finished: whether no instance is needed any more; those on disk are removed then."""
        self._maker.close()
        if finished and self._share.leads:
            self._files.forget_instances(before=1 << 62)

    def _drawn_here(self, epoch: int) -> None:
        if epoch not in self.in_foreground:
            self.in_foreground.append(epoch)

    def _drawn_share(self, epoch: int) -> bool:
        """Draws what is missing of this rank's share; False, with a warning, if it cannot be kept."""
        shards, stream = self._order.shards, self._order.stream(epoch)
        missing = missing_of(self._files, epoch, self._share.of(visiting_order(stream, len(shards))))
        with Progress(f"index of epoch {epoch}", sum(shards[each].tokens for each in missing), "token") as progress:
            for shard in missing:
                self._drawn_here(epoch)
                instances = self._order.drawn(epoch, shard).instances
                try:
                    self._files.write_shard(epoch, shard, instances)
                except (BertsmithError, OSError) as error:
                    what = f"the instances of epoch {epoch} cannot be kept, so they are held in memory: {error}"
                    warn(what, of_all_ranks=True)
                    return False
                progress.advance(shards[shard].tokens)
        return True

    def _awaited(self, epoch: int) -> EpochIndex | None:
        """The index when it is there; None, with a warning, where it does not come."""
        files, stream, by_maker = self._files, self._order.stream(epoch), self._maker.is_at(epoch)
        seen, since = -1, time.monotonic()
        for pause in _pauses():
            there = len(files.shards_there(epoch))
            if (found := files.read_index(stream)) is not None:
                return found
            if self._share.leads and there == files.shards and not self._maker.is_at(epoch):
                return self._order.build(epoch)
            if by_maker and self._maker.why_not:
                return None
            if there > seen:
                seen, since = there, time.monotonic()
            if time.monotonic() - since > PATIENCE_SECONDS:
                warn(
                    f"the index of epoch {epoch} did not grow for {duration(PATIENCE_SECONDS)} ({there:,} of "
                    f"{files.shards:,} shards are drawn): this rank now makes what is missing"
                )
                return None
            time.sleep(pause)
        raise AssertionError("pauses have no end")


class _Maker:
    """The process beside a rank. It is started when it is first asked for something, and again if it is killed.

    why_not: why it does nothing any more, or "".
    """

    def __init__(self, order: Order, share: Share) -> None:
        self._order, self._share = order, share
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
            if process.is_alive():
                process.kill()
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
                self._pipe, theirs = context.Pipe()
                self._process = context.Process(target=_serve, args=(self._order, self._share, theirs), daemon=True)
                self._process.start()
        except (OSError, AssertionError) as error:  # AssertionError: a daemonic process may not have children
            return self._give_up(f"no process for it could be started ({error})")
        theirs.close()
        for epoch in self._waiting:
            self._send(epoch)
        threading.Thread(target=self._listen, args=(self._pipe,), daemon=True, name="index ahead").start()

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


def _serve(order: Order, share: Share, pipe: Connection) -> None:
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
            pipe.send((asked[0], _made(order, share, asked[0], look)))
            asked.pop(0)
    except (EOFError, OSError):
        return


def _made(order: Order, share: Share, epoch: int, look: Callable[[float], None]) -> str:
    """Draws a rank's share of an epoch, and its index if it leads; what hindered it, or "". look: called in between."""
    files, stream = order.files, order.stream(epoch)
    assert files is not None
    try:
        for shard in missing_of(files, epoch, share.of(visiting_order(stream, files.shards))):
            look(0)
            files.write_shard(epoch, shard, order.draw(epoch, shard).instances)
        for pause in _pauses():
            if not share.leads or files.index_path(epoch).exists():
                break
            if len(files.shards_there(epoch)) == files.shards:
                files.write_index(order.collected(epoch))
            look(pause)
    except BertsmithError as error:
        return f"{error.what} ({error.where})"
    except EOFError:
        raise
    except Exception as error:  # any error: the rank will do it by itself, and meet the same one where it can be shown
        return repr(error)
    return ""


def _pauses() -> Iterator[float]:
    """Seconds between two looks at a folder, without end."""
    pause = _POLL_SECONDS
    while True:
        yield pause
        pause = min(pause * _POLL_GROWTH, _MOST_POLL_SECONDS)


def missing_of(files: EpochFiles, epoch: int, shards: Sequence[int]) -> list[int]:
    """Those of the shards whose instances are not kept."""
    there = files.shards_there(epoch)
    return [shard for shard in shards if shard not in there]
