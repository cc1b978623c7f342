"""A polite stop: a signal is noted, and the loop ends at the next step after saving."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bertsmith.base.errors import EXIT_INTERRUPTED, EXIT_STOPPED_AFTER_SAVING
from bertsmith.base.log import warn


class StoppedAfterSaving(Exception):
    """Training was asked to stop, and everything up to here is saved.

    status: what the command line ends with, 130 after Ctrl-C and 143 after another signal.
    """

    def __init__(self, message: str, interrupted: bool = False) -> None:
        super().__init__(message)
        self.status = EXIT_INTERRUPTED if interrupted else EXIT_STOPPED_AFTER_SAVING


class StopSignal:
    """Whether SIGTERM, SIGUSR1 or SIGINT (Ctrl-C) has come; interrupted: whether it was SIGINT."""

    def __init__(self) -> None:
        self.requested = self.interrupted = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """The signal handler. Raises KeyboardInterrupt at a SIGINT that follows another signal."""
        del frame
        if number == signal.SIGINT:
            if self.requested:
                raise KeyboardInterrupt
            self.interrupted = True
        self.requested = True
        again = "; once more stops at once, without saving" if self.interrupted else ""
        warn(f"{signal.Signals(number).name} received: saving after this step, then stopping{again}")


@contextmanager
def stop_on_signals() -> Iterator[StopSignal]:
    """Notes SIGTERM, SIGUSR1 and SIGINT as long as the block runs; outside the main thread Python allows no handlers.

    A SIGINT that is ignored, as by a shell's background jobs, stays ignored.
    """
    stop = StopSignal()
    previous = {}
    try:
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            if number != signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN:
                previous[number] = signal.signal(number, stop.note)
    except ValueError:
        previous = {}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
