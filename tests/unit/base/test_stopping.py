"""Signals are noted for the length of a block, handlers are put back, and a system may lack a signal."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from bertsmith.base import stopping
from bertsmith.base.stopping import StoppedAfterSaving, StopSignal, stop_on_signals, stop_requested


def test_handlers_are_put_back_and_an_ignored_sigint_stays_ignored() -> None:
    before = signal.getsignal(signal.SIGINT)
    with stop_on_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert (stop.requested, stop.interrupted) == (True, True)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) == before
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert not stop.requested
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_noted_and_answered(number: int, said: pytest.LogCaptureFixture) -> None:
    before = signal.getsignal(number)
    with stop_on_signals("finishing the requests that have come") as stop:
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert (stop.requested, stop.interrupted) == (True, False)
    assert signal.getsignal(number) == before
    name = signal.Signals(number).name
    assert said.messages == [f"warning: {name} received: finishing the requests that have come"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_work_that_does_not_look_for_signals_is_interrupted_once(number: int, said: pytest.LogCaptureFixture) -> None:
    with stop_on_signals("it stops", at_once=True) as stop:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)  # as the work is cleaned up
    assert stop.interrupted == (number == signal.SIGINT)
    assert said.messages == [f"warning: {signal.Signals(number).name} received: it stops"]


@pytest.mark.parametrize("at_once", [False, True])
def test_work_that_is_as_good_as_done_ends_as_usual(at_once: bool, said: pytest.LogCaptureFixture) -> None:
    with stop_on_signals("it stops", at_once) as stop:
        stop.end_as_usual("all is written")
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)
    assert said.messages == ["warning: SIGINT received: all is written"]


def test_a_signal_that_comes_again_is_answered_once(said: pytest.LogCaptureFixture) -> None:
    with stop_on_signals("stopping"):
        for _ in range(2):
            signal.raise_signal(signal.SIGTERM)
    assert said.messages == ["warning: SIGTERM received: stopping"]


def test_a_ctrl_c_that_reaches_launcher_and_rank_is_one(
    monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    """The launcher passes it on, so a rank gets it twice; one that comes later is the user's second."""
    now = 100.0
    monkeypatch.setattr(stopping.time, "monotonic", lambda: now)
    monkeypatch.setenv("BERTSMITH_LAUNCHER", "1")
    with stop_on_signals("stopping") as stop:
        signal.raise_signal(signal.SIGINT)
        now += 0.9
        signal.raise_signal(signal.SIGINT)
        assert stop.interrupted
        now += 0.2
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert len(said.messages) == 1


def test_whether_a_stop_was_asked_for_is_known_after_the_block() -> None:
    with stop_on_signals():
        assert not stop_requested()
        signal.raise_signal(signal.SIGTERM)
    assert stop_requested() == 143
    with stop_on_signals():
        assert not stop_requested()


def test_without_an_answer_it_is_the_one_of_training(said: pytest.LogCaptureFixture) -> None:
    with stop_on_signals():
        os.kill(os.getpid(), signal.SIGTERM)
    assert said.messages == [
        "warning: SIGTERM received: the unfinished step is dropped, then the run is saved and stops"
    ]


def test_a_thread_gets_no_handlers_and_no_error() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), []

    def work() -> None:
        with stop_on_signals() as stop:
            seen.append((stop.requested, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(False, before)]


def test_the_exit_status_tells_ctrl_c_from_another_signal() -> None:
    assert (StoppedAfterSaving("", interrupted=True).status, StoppedAfterSaving("").status) == (130, 143)


_WITHOUT = """
import os, signal
del signal.SIGUSR1  # as on Windows
from bertsmith.base.stopping import stop_on_signals
with stop_on_signals() as stop:
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.requested
"""


def test_a_system_may_lack_a_signal() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


IN_A_PRINT = """
import sys
from bertsmith.base import log
from bertsmith.base.stopping import stop_on_signals
log.configure()
with stop_on_signals("it stops") as stop:
    print("begun", flush=True)
    print("x" * 1_000_000, file=sys.stderr)
    sys.exit(0 if stop.requested else 3)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGTERM to another process")
def test_a_signal_in_the_middle_of_a_line_of_the_log_is_noted_like_any_other() -> None:
    """The print waits for a reader when the signal comes."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-c", IN_A_PRINT], stdout=pipe, stderr=pipe, env=environment)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == b"begun\n"
    begun = process.stderr.read(1)
    process.send_signal(signal.SIGTERM)
    said = begun + process.stderr.read()
    assert process.wait() == 0, said[-2000:]
    assert said.count(b"x") == 1_000_000
    assert said.count(b"warning: SIGTERM received: it stops\n") == 1
    process.stdout.close()
    process.stderr.close()


def test_the_same_interrupt_that_comes_while_the_first_is_noted_is_answered_once(
    monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    """As that of a launcher, which comes behind that of a terminal, while Python looks at the clock for the first."""
    monkeypatch.setenv("BERTSMITH_LAUNCHER", "1")
    stop, calls, clock = StopSignal(), list[int](), time.monotonic

    def interrupted() -> float:
        calls.append(1)
        if len(calls) == 1:
            stop.note(signal.SIGINT, None)
        return clock()

    monkeypatch.setattr(stopping.time, "monotonic", interrupted)
    stop.note(signal.SIGINT, None)
    assert len(calls) == 2
    assert stop.requested
    assert stop.interrupted
    assert len(said.messages) == 1
