"""The child processes of a bench: out of memory is an answer, what dies is quoted, and nothing outlives a bench."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.process import NO_TIME, Child, OutOfTime, SideFailed, nothing_measured
from made_ranks import is_alive

MODULE = """
import os, subprocess, sys, time
from bertsmith.bench.child import CannotHere, Ready, serve

def start(spec):
    print("this is no answer")
    if spec["fails"] == "missing":
        import no_such_package.inside
    if spec["fails"] == "here":
        raise CannotHere("not on a Tuesday")
    if spec["fails"] == "bug":
        raise RuntimeError("a bug of ours")
    return Odd() if spec["fails"] == "silent" else Odd(pid=os.getpid())

class Odd(Ready):
    def list(self):
        return {"bytes": len(bytearray(1 << 62))}
    def tensor(self):
        import torch
        return {"bytes": torch.empty(1 << 60).nbytes}
    def missing(self):
        import no_such_package.inside
    def array(self):
        import numpy
        return {"bytes": numpy.empty(1 << 56).nbytes}
    def family(self):
        return {"pid": subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]).pid}
    def burn(self, seconds):
        end = time.process_time() + seconds
        while time.process_time() < end:
            pass
        return {}
    def wait(self, path):
        while not os.path.exists(path):
            time.sleep(0.01)
        return {}
    def exit(self):
        print("these are my last words", file=sys.stderr)
        os._exit(3)
    def echo(self, **given):
        return given

if __name__ == "__main__":
    serve(start)
"""


@pytest.fixture
def places(tmp_path) -> dict[str, str]:
    """An environment in which a process finds the module above."""
    (tmp_path / "odd_side.py").write_text(MODULE)
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])}


def child(tmp_path: Path, places: dict[str, str], fails: str = "", deadline: float = float("inf")) -> Child:
    return Child("odd_side", {"fails": fails}, tmp_path / "child", places, deadline)


def is_gone(pid: int, seconds: float = 20.0) -> bool:
    """Whether the process has ended, or is about to."""
    end = time.monotonic() + seconds
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.02)
    return not is_alive(pid)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        *((each, "out of memory") for each in ("list", "tensor", "array")),
        ("missing", "no_such_package is not installed"),
    ],
)
def test_what_cannot_be_done_is_an_answer_and_the_next_question_is_answered(tmp_path, places, asked, said):
    with child(tmp_path, places) as side:
        with pytest.raises(SideFailed) as raised:
            side.ask(asked)
        assert raised.value.what == said
        assert side.is_alive
        assert side.ask("echo", more=[1, 2]) == {"more": [1, 2]}


@pytest.mark.parametrize(
    ("fails", "said"), [("missing", "no_such_package is not installed"), ("here", "not on a Tuesday")]
)
def test_what_cannot_start_here_says_why_as_often_as_it_is_asked(tmp_path, places, fails, said):
    with child(tmp_path, places, fails) as side:
        for _ in range(2):
            with pytest.raises(SideFailed) as raised:
                side.ask("echo")
            assert raised.value.what == said


@pytest.mark.parametrize(("fails", "said"), [("bug", "RuntimeError: a bug of ours"), ("", "these are my last words")])
def test_a_side_that_ends_by_itself_is_quoted(tmp_path, places, fails, said):
    with child(tmp_path, places, fails) as side, pytest.raises(BertsmithError, match=r"ended with status") as raised:
        side.ask("exit")
    assert not side.is_alive
    assert not isinstance(raised.value, SideFailed)
    assert said in raised.value.what
    assert raised.value.where == "odd_side"


def test_what_ended_after_it_was_ready_can_start_again(tmp_path, places):
    with child(tmp_path, places) as side:
        first = side.ready()["pid"]
        side.start_again()
        assert side.pid == first, "it is there"
        with pytest.raises(BertsmithError, match="last words"):
            side.ask("exit")
        side.start_again()
        assert side.ask("echo") == {}
        assert side.ready()["pid"] == side.pid != first
    assert is_gone(side.pid)


def test_what_has_nothing_to_say_when_it_is_ready_is_ready_as_often_as_it_is_asked(tmp_path, places):
    with child(tmp_path, places, "silent", time.monotonic() + 200) as side:
        assert side.ready() == side.ready() == {}
        assert [side.ask("echo", more=each) for each in (1, 2)] == [{"more": 1}, {"more": 2}]
        with pytest.raises(BertsmithError, match="last words"):
            side.ask("exit")
        side.start_again()
        assert side.ask("echo") == {}


def test_what_never_was_ready_does_not_start_again(tmp_path, places):
    with child(tmp_path, places, "here") as side:
        for _ in range(2):
            with pytest.raises(SideFailed, match="not on a Tuesday"):
                side.ready()
            assert is_gone(side.pid)
            first = side.pid
            side.start_again()
            assert side.pid == first


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one(tmp_path, places):
    deadline = time.monotonic() + 3600
    with child(tmp_path, places, deadline=deadline) as side:
        side.ready()
        side._deadline = time.monotonic() + 0.1
        with pytest.raises(OutOfTime):
            side.ask("wait", path=str(tmp_path / "go"))
        (tmp_path / "go").touch()
        time.sleep(0.5)  # where the answer comes later still, the test shows less, and passes
        with pytest.raises(OutOfTime):
            side.ask("echo")


def test_the_processor_time_is_that_of_the_work(tmp_path, places):
    with child(tmp_path, places) as side:
        side.ask("burn", seconds=0.5)
        assert 0.5 < side.finish() < 20
        assert is_gone(side.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_a_side_and_what_it_started_end_when_the_bench_is_killed(tmp_path, places):
    code = (
        "import sys\nfrom pathlib import Path\nfrom bertsmith.bench.process import Child\n"
        "side = Child('odd_side', {'fails': ''}, Path(sys.argv[1]))\n"
        "print(side.pid, side.ask('family')['pid'], flush=True)\nside.ask('wait', path=sys.argv[1] + '/never')\n"
    )
    bench = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "child")], stdout=subprocess.PIPE, env=os.environ | places
    )
    try:
        assert bench.stdout is not None
        pids = [int(each) for each in bench.stdout.readline().split()]
        assert len(pids) == 2
    finally:
        bench.send_signal(signal.SIGKILL)
        bench.communicate()
    assert all(is_gone(pid) for pid in pids)


def test_more_time_is_asked_for_where_time_was_short_and_nowhere_else():
    assert "--minutes" in nothing_measured(["a: out of memory", f"b: {NO_TIME}"], "bench reference").fix
    error = nothing_measured(["a: out of memory", "b: torch is not installed"], "bench reference")
    assert error.what == "nothing was measured: a: out of memory; b: torch is not installed"
    assert "--minutes" not in error.fix
