"""A polite stop: a signal is noted, and the work stops at the next point where it can save or finish."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from bertsmith.base.errors import EXIT_INTERRUPTED, EXIT_STOPPED_AFTER_SAVING
from bertsmith.base.log import warn

# By name, because Windows has no SIGUSR1; there SIGTERM comes only from this process itself.
SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGUSR1", "SIGINT") if hasattr(signal, name))
# Those of a terminal, which a shell has its background jobs ignore: these stay ignored.
_OF_TERMINAL = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTSTP") if hasattr(signal, name))
# Set for its children by `ranks.launcher`, to its process number.
LAUNCHER = "BERTSMITH_LAUNCHER"
_SAME_SECONDS = 1.0
Handler = Callable[[int, FrameType | None], Any]
_requested = 0
_within: StopSignal | None = None


def leave_stopping_to_parent() -> None:
    """For a process that works for another one: ignores the signals that reach the whole group, as of Ctrl-C and of a
    scheduler. The parent decides when both of them end."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class StoppedAfterSaving(Exception):
    """The work was stopped by a signal, and what it saves is saved.

    status: exit status of the command line, 130 after Ctrl-C and 143 after another signal.
    """

    def __init__(self, message: str, interrupted: bool = False) -> None:
        super().__init__(message)
        self.interrupted = interrupted
        self.status = EXIT_INTERRUPTED if interrupted else EXIT_STOPPED_AFTER_SAVING


class StopSignal:
    """Whether SIGTERM, SIGUSR1 or SIGINT (Ctrl-C) has come; interrupted: whether it was SIGINT.

    answer: what is logged when a signal comes, about what happens next. at_once: the work does not look for signals, so
    the first one raises KeyboardInterrupt where it stands.
    """

    answer = "the unfinished step is dropped, then the run is saved and stops"

    def __init__(self, at_once: bool = False) -> None:
        self._at_once, self._ends_as_usual = at_once, False
        self.requested = self.interrupted = False
        self._interrupted_at = float("-inf")

    def end_as_usual(self, answer: str) -> None:
        """From now on signals are answered and change nothing, for work that is as good as done."""
        self.answer, self._ends_as_usual = answer, True

    def note(self, number: int, frame: FrameType | None) -> None:
        """The signal handler. Raises KeyboardInterrupt at a SIGINT that follows another signal, as at the first one of
        work that stops at once.

        A signal that is sent to a launcher and its ranks reaches these twice, so the same Ctrl-C may come again."""
        del frame
        global _requested
        now, launched, interrupt = time.monotonic(), LAUNCHER in os.environ, number == signal.SIGINT
        # Nothing is called until all is noted: inside of a call the same signal may come once more.
        first, again = not self.requested, now - self._interrupted_at < _SAME_SECONDS
        self.requested, _requested = True, _requested or EXIT_STOPPED_AFTER_SAVING
        if interrupt and first:
            self.interrupted, self._interrupted_at, _requested = True, now, EXIT_INTERRUPTED
        if interrupt and not first:
            if (again and launched) or self._ends_as_usual:
                return
            raise KeyboardInterrupt
        if first:
            self._answer(number)
            if self._at_once and not self._ends_as_usual:
                raise KeyboardInterrupt

    def take(self, other: StopSignal) -> None:
        """Counts the signals of another one as its own too."""
        self.requested |= other.requested
        self.interrupted |= other.interrupted
        self._interrupted_at = max(self._interrupted_at, other._interrupted_at)

    def _answer(self, number: int) -> None:
        waits = self.interrupted and not (self._at_once or self._ends_as_usual)
        again = "; press Ctrl-C again to stop at once, without that" if waits else ""
        message = f"{signal.Signals(number).name} received: {self.answer}{again}"
        try:
            warn(message, of_all_ranks=True)
        except RuntimeError:  # the signal came inside of a print, and Python allows none inside of that
            with suppress(OSError):
                os.write(2, f"warning: {message}\n".encode())


def stop_requested() -> int:
    """The status that a signal of the last block of `stop_on_signals` ends the process with; 0 where none has come."""
    return _requested


@contextmanager
def handled(handlers: Mapping[int, Handler]) -> Iterator[None]:
    """Has these handlers called for the length of the block, but for a SIGINT or SIGTSTP that is ignored, as in a
    shell's background jobs. Outside the main thread, where Python allows no signal handlers, it does nothing."""
    previous = {}
    try:
        with suppress(ValueError):
            for number, handler in handlers.items():
                if number not in _OF_TERMINAL or signal.getsignal(number) != signal.SIG_IGN:
                    previous[number] = signal.signal(number, handler)
        yield
    finally:
        for number, before in previous.items():
            signal.signal(number, signal.SIG_DFL if before is None else before)


@contextmanager
def interrupt_waits() -> Iterator[None]:
    """A Ctrl-C is answered when the block ends, by KeyboardInterrupt. For importing PyTorch: its C++ code takes what is
    raised while it loads numpy for a numpy that is not installed, and continues, or it ends the process."""
    noted: list[int] = []
    with handled({signal.SIGINT: lambda number, _: noted.append(number)}):
        yield
    if noted:
        raise KeyboardInterrupt


@contextmanager
def stop_on_signals(answer: str = StopSignal.answer, at_once: bool = False) -> Iterator[StopSignal]:
    """Notes SIGTERM, SIGUSR1 and SIGINT for the length of the block, as far as the system has them.

    As of `handled`, nothing is noted outside the main thread. A block within another one begins with the signals of
    that one, and leaves it its own. answer, at_once: as of `StopSignal`.
    """
    global _requested, _within
    in_main = threading.current_thread() is threading.main_thread()
    outer, stop = _within if in_main else None, StopSignal(at_once)
    stop.answer = answer
    if outer is None:
        _requested = 0
    try:
        with handled(dict.fromkeys(SIGNALS, stop.note)):
            # The outer block's signals are taken when the handlers are there, and given back when its own are again, so
            # that none is lost.
            if outer is not None:
                stop.take(outer)
            _within = stop if in_main else _within
            yield stop
    finally:
        if outer is not None:
            outer.take(stop)
        _within = outer if in_main else _within
