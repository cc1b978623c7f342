"""A polite stop: a signal is noted, and the loop ends at the next step after saving."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from bertsmith.base.log import warn


class StoppedAfterSaving(Exception):
    """Training was asked to stop, and everything up to here is saved. The command line ends with status 143."""


class StopSignal:
    """Whether SIGTERM or SIGUSR1 has come."""

    def __init__(self) -> None:
        self.requested = False

    def note(self, number: int, frame: FrameType | None) -> None:
        """The signal handler."""
        del frame
        self.requested = True
        warn(f"{signal.Signals(number).name} received: saving after this step, then stopping")


@contextmanager
def stop_on_signals() -> Iterator[StopSignal]:
    """Notes SIGTERM and SIGUSR1 for as long as the block runs; outside the main thread Python allows no handlers."""
    stop = StopSignal()
    previous = {}
    try:
        for number in (signal.SIGTERM, signal.SIGUSR1):
            previous[number] = signal.signal(number, stop.note)
    except ValueError:
        previous = {}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
