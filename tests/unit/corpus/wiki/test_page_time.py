"""A limit on CPU time: asked for where the work asks, raised into what does not, and gone without a trace."""

from __future__ import annotations

import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from bertsmith.corpus.wiki import page_time
from bertsmith.corpus.wiki.page_time import Check, TookTooLongError, why_polled, within

needs_signals = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no timers that raise signals")


@pytest.fixture(autouse=True)
def interrupted_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of these tests stands for ours."""
    monkeypatch.setattr(page_time, "_INTERRUPTED", ("re", __name__))


def spin(check: Check) -> None:
    """Work without end, which asks."""
    while True:
        check()


def deaf(check: Check) -> None:
    """Work without end, which never asks."""
    number = 0
    while True:
        number += 1


def backtrack(check: Check) -> None:
    """One call into C that takes ages."""
    re.match("(a+)+b", "a" * 40)


def in_a_thread(work: Callable[[Check], None]) -> type[BaseException] | None:
    """What ends the work in another thread."""
    ended: list[type[BaseException]] = []

    def run() -> None:
        try:
            within(0.02, work)
        except TookTooLongError as error:
            ended.append(type(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return ended[0] if ended else None


def test_what_is_done_in_time_is_returned() -> None:
    assert within(60.0, lambda check: check() or 7) == 7


def test_work_that_asks_is_ended_in_any_thread() -> None:
    with pytest.raises(TookTooLongError):
        within(0.02, spin)
    assert in_a_thread(spin) is TookTooLongError


@needs_signals
@pytest.mark.parametrize("work", [deaf, backtrack])
def test_work_that_does_not_ask_is_ended_by_a_signal(work: Callable[[Check], None]) -> None:
    assert not why_polled()
    with pytest.raises(TookTooLongError):
        within(0.02, work)


@needs_signals
def test_an_exception_that_was_lost_is_raised_again() -> None:
    def swallowing(check: Check) -> None:
        try:
            deaf(check)
        except TookTooLongError:
            deaf(check)

    with pytest.raises(TookTooLongError):
        within(0.02, swallowing)


@needs_signals
def test_code_of_others_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be a callback, which would lose the exception; the next code of ours is."""
    monkeypatch.setattr(page_time, "_INTERRUPTED", ("re",))
    counted: list[int] = []

    def others(check: Check) -> None:
        begun = time.thread_time()
        while time.thread_time() < begun + 0.3:
            pass
        counted.append(1)
        backtrack(check)

    with pytest.raises(TookTooLongError):
        within(0.02, others)
    assert counted == [1]


@needs_signals
def test_nothing_is_left_of_the_limit() -> None:
    for work in (spin, lambda check: None):
        with suppress(TookTooLongError):
            within(0.02, work)
        assert signal.getsignal(signal.SIGPROF) is signal.SIG_DFL
        assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


@needs_signals
def test_a_profiler_keeps_its_signal() -> None:
    heard: list[int] = []
    signal.signal(signal.SIGPROF, lambda number, frame: heard.append(number))
    try:
        assert "profiler" in why_polled()
        with pytest.raises(TookTooLongError):
            within(0.02, spin)
        signal.raise_signal(signal.SIGPROF)
        assert heard == [signal.SIGPROF]
    finally:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)


def test_waiting_is_not_counted() -> None:
    """The limit is of CPU time: a busy machine, or a slow disk, makes no page slow."""
    assert within(0.2, lambda check: time.sleep(0.3) or check() or "done") == "done"


def test_a_thread_says_that_it_is_polled() -> None:
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(why_polled()))
    thread.start()
    thread.join()
    assert said[0]
