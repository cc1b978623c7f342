"""Starts the ranks of a run on this machine: the same command line once for each, joined by torchrun's variables.

The store at which they meet belongs to this process, so it outlives every rank. Signals are passed on to the ranks, a
rank that fails ends the others, and none outlives this process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from types import FrameType
from typing import Any

from bertsmith.base.errors import (
    EXIT_DONE,
    EXIT_INTERRUPTED,
    EXIT_OUR_BUG,
    EXIT_RANK_LOST,
    EXIT_STOPPED_AFTER_SAVING,
    BertsmithError,
)
from bertsmith.base.ranks.places import LAUNCHER
from bertsmith.base.ranks.store import STOPPED, VERDICT, serve, this_host
from bertsmith.base.ranks.verdict import Verdict
from bertsmith.base.stopping import SIGNALS, Handler, handled

_ADDRESS = "127.0.0.1"
_POLL_SECONDS = 0.1
_STORE_SECONDS = 60.0
# Of the ranks' timeout: for so long the others may take to leave once one has failed. A stopped one never does.
_GRACE_SHARE, _LONGEST_GRACE = 0.2, 30.0


def launch(command: Sequence[str], ranks: int, threads: int, timeout_seconds: float) -> int:
    """Runs `command` as so many ranks and gives the exit status for all: that of the rank that failed first, 143 or 130
    after a stop by a signal, else 0. threads: of each rank, where the user has not set OMP_NUM_THREADS.
    timeout_seconds: after which the ranks take a silent one for lost."""
    store, port = serve(_ADDRESS, _STORE_SECONDS, _run())
    grace = min(_GRACE_SHARE * timeout_seconds, _LONGEST_GRACE)
    launcher = _Launcher(store, grace)
    with launcher.signals_passed_on():
        try:
            launcher.start(command, ranks, _environment(port, ranks, threads))
            launcher.wait()
        finally:
            launcher.kill()
    return launcher.status()


def _environment(port: int, ranks: int, threads: int) -> dict[str, str]:
    """What all ranks find in their environment; the user's own settings of threads and interfaces stay."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "GLOO_SOCKET_IFNAME": loopback(),
        **os.environ,
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": _ADDRESS,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_RUN_ID": _run(),
        LAUNCHER: str(os.getpid()),
    }


def loopback() -> str:
    """The interface by which ranks of one machine talk."""
    return "lo" if sys.platform == "linux" else "lo0"


def _run() -> str:
    return f"bertsmith-{os.getpid()}"


class _Launcher:
    """The ranks of one run, as processes. store: where they meet. grace_seconds: for the others once one has failed."""

    def __init__(self, store: Any, grace_seconds: float) -> None:
        self._store, self._grace_seconds = store, grace_seconds
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._stop: int | None = None

    def start(self, command: Sequence[str], ranks: int, environment: dict[str, str]) -> None:
        """Starts the processes, each the leader of a group of its own: a Ctrl-C reaches them through us alone."""
        for number in range(ranks):
            own = {"RANK": str(number), "LOCAL_RANK": str(number)}
            try:
                self._ranks.append(subprocess.Popen(command, env={**environment, **own}, start_new_session=True))
            except OSError as error:
                what = f"rank {number} of {ranks} could not be started ({error})"
                raise BertsmithError(what, "ranks", "start fewer of them") from error
        if self._stop is not None:  # it came before they were there
            self._pass_on(self._stop, None)

    def signals_passed_on(self) -> AbstractContextManager[None]:
        """Passes signals on while the block runs, as of `handled`."""
        handlers: dict[int, Handler] = dict.fromkeys(SIGNALS, self._pass_on)
        if hasattr(signal, "SIGTSTP"):
            handlers[signal.SIGTSTP] = self._suspend
        return handled(handlers)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._stop = number
        for process in self._ranks:
            if process.poll() is None:
                process.send_signal(number)

    def _suspend(self, number: int, frame: FrameType | None) -> None:
        """Stops the ranks, with what they started, and this process, which holds their store: all until a SIGCONT."""
        del number, frame
        self._signal_groups(signal.SIGSTOP)
        signal.raise_signal(signal.SIGSTOP)
        self._signal_groups(signal.SIGCONT)

    def _signal_groups(self, number: int) -> None:
        for process in self._ranks:
            if process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, number)

    def wait(self) -> None:
        """Waits for all ranks, and for those that are left once one has failed no longer than the time of grace."""
        end = float("inf")
        while True:
            statuses = [process.poll() for process in self._ranks]
            failed = [rank for rank, status in enumerate(statuses) if status]
            if failed and end == float("inf"):
                end = time.monotonic() + self._grace_seconds
                self._tell(failed[0])
            if None not in statuses or time.monotonic() > end:
                return
            time.sleep(_POLL_SECONDS)

    def _tell(self, rank: int) -> None:
        """Gives the others the reason where the failed rank could not."""
        status = self._ranks[rank].returncode
        killed = status < 0
        if killed:
            reason = ", as the system does when memory runs out" if status == -signal.SIGKILL else ""
            what, status = f"was killed by {signal.Signals(-status).name}{reason}", EXIT_RANK_LOST
        else:
            what = f"ended with status {status}"
            if status == EXIT_OUR_BUG and self._stop is not None:
                # Python ends so where SIGINT comes while it starts; a rank that has joined has given a verdict.
                status = self._stop_status()
        verdict = Verdict(rank, this_host(), what, status, told=True)
        standing = Verdict.read(self._store.compare_set(VERDICT, "", verdict.text()))
        if standing == verdict and killed:
            with suppress(OSError):  # whoever reads our output may have gone
                print(verdict.line(), file=sys.stderr, flush=True)

    def kill(self) -> None:
        """Kills the ranks that are left, with what they started; a stopped process dies of this too."""
        for process in self._ranks:
            if process.poll() is None:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except (AttributeError, ProcessLookupError):
                    process.kill()
                process.wait()

    def status(self) -> int:
        """The exit status of the run."""
        statuses = [process.returncode for process in self._ranks]
        if not any(statuses):
            return int(self._store.get(STOPPED)) if self._store.check([STOPPED]) else EXIT_DONE
        if self._stop is not None and -self._stop in statuses:  # by the signal passed on, before it could save
            return self._stop_status()
        standing = Verdict.read(self._store.get(VERDICT)) if self._store.check([VERDICT]) else None
        return standing.status if standing is not None else EXIT_RANK_LOST

    def _stop_status(self) -> int:
        return EXIT_INTERRUPTED if self._stop == signal.SIGINT else EXIT_STOPPED_AFTER_SAVING
