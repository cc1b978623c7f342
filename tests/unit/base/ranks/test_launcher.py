"""What a launcher does with processes, of which none needs torch: their variables, statuses, signals and ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.base.ranks.launcher import launch

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals as POSIX has them")
LONG = 600.0


def ran(text: str, ranks: int = 2, timeout: float = LONG) -> int:
    """The status of a launch whose ranks run a Python text."""
    return launch([sys.executable, "-c", f"import os, sys, time, signal, json\nrank = os.environ['RANK']\n{text}"],
                  ranks, threads=3, timeout_seconds=timeout)  # fmt: skip


def test_every_rank_finds_torchrun_s_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("KEPT", "yes")
    assert ran(f"json.dump(dict(os.environ), open({str(tmp_path)!r} + '/' + rank, 'w'))", ranks=3) == 0
    found = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(3)]
    assert [each["LOCAL_RANK"] for each in found] == ["0", "1", "2"]
    assert {each["WORLD_SIZE"] for each in found} == {each["LOCAL_WORLD_SIZE"] for each in found} == {"3"}
    assert {each["OMP_NUM_THREADS"] for each in found} == {"3"}
    assert {each["KEPT"] for each in found} == {"yes"}
    assert len({(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in found}) == 1


def test_the_user_s_number_of_threads_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert ran("sys.exit(os.environ['OMP_NUM_THREADS'] != '7')") == 0


@pytest.mark.parametrize("status", [1, 2, 75])
def test_the_status_is_that_of_the_rank_that_fails_first(status: int) -> None:
    assert ran(f"sys.exit({status}) if rank == '1' else time.sleep(600)", timeout=2) == status


def test_a_rank_that_cannot_be_started_is_named_and_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = subprocess.Popen, []

    def starting(*command: Any, **more: Any) -> Any:
        if started:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        started.append(start(*command, **more))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", starting)
    with pytest.raises(BertsmithError, match=r"rank 1 of 2 could not be started .*unavailable"):
        ran("time.sleep(600)")
    assert started[0].poll() is not None


def test_a_rank_that_is_killed_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    assert ran("os.kill(os.getpid(), signal.SIGKILL) if rank == '1' else time.sleep(600)", timeout=2) == 75
    assert capfd.readouterr().err.count("rank 1 on ") == 1


def test_a_stopped_rank_does_not_hide_another_s_end() -> None:
    assert ran("os.kill(os.getpid(), signal.SIGSTOP) if rank == '0' else sys.exit(2)", timeout=2) == 2


@pytest.mark.parametrize(
    ("number", "taken", "status"),
    [
        (signal.SIGTERM, "signal.SIG_DFL", 143),
        (signal.SIGUSR1, "signal.SIG_DFL", 143),
        (signal.SIGINT, "signal.SIG_DFL", 130),
        (signal.SIGINT, "lambda *_: os._exit(1)", 130),
    ],
)
def test_ranks_that_die_of_a_signal_before_they_can_save_were_stopped(
    number: signal.Signals, taken: str, status: int, tmp_path: Path
) -> None:
    """Python ends with status 1 where SIGINT comes while it starts."""

    def send() -> None:
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    threading.Thread(target=send, daemon=True).start()
    ready = f"signal.signal({number}, {taken}); open({str(tmp_path)!r} + '/' + rank, 'w').close()"
    assert ran(f"{ready}; time.sleep(600)") == status


@pytest.mark.skipif(sys.platform != "linux", reason="looks for states where Linux lists them")
def test_ctrl_z_stops_the_ranks_too_and_they_continue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopped without the launcher, which holds the store, they would take the first rank for lost."""
    states: list[str] = []

    def suspended(number: int) -> None:
        assert number == signal.SIGSTOP
        for rank in range(2):
            status, end = Path(f"/proc/{(tmp_path / str(rank)).read_text()}/stat"), time.monotonic() + 60
            while ") T " not in status.read_text() and time.monotonic() < end:
                time.sleep(0.05)
            states.append(status.read_text().rpartition(")")[2].split()[0])
        (tmp_path / "go").touch()

    def send() -> None:
        while not all((tmp_path / str(rank)).exists() and (tmp_path / str(rank)).read_text() for rank in range(2)):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTSTP)

    monkeypatch.setattr(signal, "raise_signal", suspended)
    threading.Thread(target=send, daemon=True).start()
    folder = str(tmp_path)
    text = f"open({folder!r} + '/' + rank, 'w').write(str(os.getpid()))"
    assert ran(f"{text}\nwhile not os.path.exists({folder!r} + '/go'): time.sleep(0.05)") == 0
    assert states == ["T", "T"]


def test_what_a_killed_rank_started_goes_with_it(tmp_path: Path) -> None:
    text = f"""
if rank == '1':
    while not os.path.exists({str(tmp_path / "pid")!r}): time.sleep(0.05)
    sys.exit(2)
import subprocess
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])
open({str(tmp_path / "part")!r}, 'w').write(str(child.pid))
os.rename({str(tmp_path / "part")!r}, {str(tmp_path / "pid")!r})
time.sleep(600)
"""
    assert ran(text, timeout=2) == 2
    child, end = int((tmp_path / "pid").read_text()), time.monotonic() + 60
    while time.monotonic() < end:
        try:
            os.kill(child, 0)
        except ProcessLookupError:
            return
        if sys.platform == "linux" and ") Z " in Path(f"/proc/{child}/stat").read_text():
            return
        time.sleep(0.1)
    raise AssertionError("it lives")
