"""The last resort against a page that takes too long: a limit on the CPU time that work on it may take.

The work itself checks the time every so often. Where the system has timers that raise signals, and in the main thread,
a signal checks it too, and so ends a loop or a regular expression that does not. Neither ends a single call into the
wikitext parser: what that can take is bounded beforehand (see `inline`).
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

Result = TypeVar("Result")
Check = Callable[[], None]

# CPU seconds after which the signal comes again.
_AGAIN_SECONDS = 0.1
# Where it may raise: a callback out of C or the garbage collector would lose the exception, or worse.
_INTERRUPTED = ("bertsmith", "re")


class TookTooLongError(Exception):
    """The work took more than its limit."""


def why_polled() -> str:
    """Why no signal can end the work of this thread, or ""."""
    if sys.platform == "win32":
        return "Windows has no timers that raise signals"
    if threading.current_thread() is not threading.main_thread():
        return "signals reach the main thread only, and this is another"
    if signal.getsignal(signal.SIGPROF) is not signal.SIG_DFL:
        return "a profiler has the signal SIGPROF"
    return ""


def within(seconds: float, work: Callable[[Check], Result]) -> Result:
    """What `work` returns, given a function for it to call every so often.

    Raises TookTooLongError once this thread has spent `seconds` of CPU time.
    """
    end = time.thread_time() + seconds

    def check() -> None:
        if time.thread_time() > end:
            raise TookTooLongError

    return work(check) if why_polled() else _signalled(seconds, work, check)


def _signalled(seconds: float, work: Callable[[Check], Result], check: Check) -> Result:
    """The timer counts the time of all threads, so the signal may come early, and comes again."""

    def interrupted(number: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INTERRUPTED:
            check()

    before = signal.signal(signal.SIGPROF, interrupted)
    try:
        try:
            signal.setitimer(signal.ITIMER_PROF, seconds, _AGAIN_SECONDS)
            return work(check)
        finally:  # twice, as the signal may come just here
            signal.setitimer(signal.ITIMER_PROF, 0)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
