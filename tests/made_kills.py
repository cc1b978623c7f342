"""Ranks in processes of their own, killed at random moments with SIGKILL, as a machine that is lost kills them."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bertsmith.base.ranks import is_first
from bertsmith.training.loop import Trainer
from bertsmith.training.objective import Step
from made_runs import PATIENCE, fork_server, join_ranks, leave_ranks


@dataclass(frozen=True)
class Moment:
    """When a rank kills itself: so long after the step of the run, however far it has come by then; after 0 seconds it
    has taken the step, and neither logged nor saved it. saved: the first rank alone, and not before the last save is on
    the disk, which on a busy machine may take longer than the steps after it."""

    step: int
    delay_seconds: float
    saved: bool = False


@dataclass(frozen=True)
class Rename:
    """When a rank kills itself: before it gives a file that it has written a name that matches this pattern."""

    pattern: str


def drawing() -> random.Random:
    """Random moments; pytest shows the seed of a test that fails."""
    seed = random.randrange(1 << 30)
    print(f"random moments by seed {seed}")
    return random.Random(seed)


def ran(work: Callable[..., None], ranks: int, *args: object, kill: Moment | Rename | None = None) -> None:
    """Calls `work` with `args` on so many ranks, joined where they are several, each in a process of its own.

    kill: when each rank kills itself; the first one to die takes the others with it. Without it all must succeed.
    """
    context = fork_server()
    folder = TemporaryDirectory(prefix="bertsmith-ranks-")
    meeting = Path(folder.name)
    processes = [context.Process(target=_rank, args=(rank, ranks, meeting, kill, work, args)) for rank in range(ranks)]
    for process in processes:
        process.start()
    try:
        for process in _ended(processes):
            if kill is None:
                assert process.exitcode == 0, (
                    f"rank {processes.index(process)} of {ranks} ended with {process.exitcode}"
                )
            else:
                break
    finally:
        for process in processes:
            process.kill()
            process.join()
        folder.cleanup()
    if kill is not None:
        assert -signal.SIGKILL in {process.exitcode for process in processes}


def _ended(processes: list[multiprocessing.process.BaseProcess]) -> Iterator[multiprocessing.process.BaseProcess]:
    """The processes as they end."""
    from multiprocessing.connection import wait

    running = {process.sentinel: process for process in processes}
    while running:
        ended = wait(list(running), timeout=PATIENCE)
        assert ended, f"{len(running)} of {len(processes)} ranks did not end in {PATIENCE} s"
        for sentinel in ended:
            process = running.pop(sentinel)
            process.join()
            yield process


def _rank(
    rank: int,
    ranks: int,
    meeting: Path,
    kill: Moment | Rename | None,
    work: Callable[..., None],
    args: tuple[object, ...],
) -> None:
    pytest.MonkeyPatch().setitem(sys.modules, "matplotlib.backends.backend_agg", None)  # as `no_figures`
    if isinstance(kill, Moment):
        _kill_at(kill)
    elif kill is not None:
        _kill_before(kill)
    if ranks > 1:
        join_ranks(rank, ranks, meeting)
    work(*args)
    if kill is not None:
        os.kill(os.getpid(), signal.SIGKILL)  # the run was over before the moment came
    if ranks > 1:
        leave_ranks()


def _kill_at(moment: Moment) -> None:
    advance, timers = Trainer._advance, []

    def advancing(self: Trainer, taken: Step) -> None:
        advance(self, taken)
        if self.position.step >= moment.step and not timers and (is_first() or not moment.saved):
            if moment.saved and self.saver._thread is not None:
                self.saver._thread.join()
            if not moment.delay_seconds:
                os.kill(os.getpid(), signal.SIGKILL)
            timers.append(threading.Timer(moment.delay_seconds, os.kill, (os.getpid(), signal.SIGKILL)))
            timers[0].start()

    Trainer._advance = advancing  # type: ignore[method-assign]


def _kill_before(rename: Rename) -> None:
    replace = os.replace

    def replacing(source: Path, target: Path) -> None:
        if Path(target).match(rename.pattern):
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)

    os.replace = replacing  # type: ignore[assignment]
