"""Promise: processes that share nothing but a folder make one corpus between them, whoever dies, to the same bytes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.engines import array_jobs
from bertsmith.corpus.engines.array_jobs import Seat
from bertsmith.corpus.engines.open import open_engine
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from made_commands import Command
from made_corpora import OPTIONS, Running, contents, hold, made_parts, start, wait_for

TASKS = 3


def task(number: int, source: Path, out: Path, holds: str = "") -> Command:
    return start(source, out, holds, workers=1, array_task=f"{number}/{TASKS}")


def end(processes: Sequence[Running]) -> None:
    for process in processes:
        _, errors = process.communicate()
        assert process.wait() == 0, errors


def makers(out: Path) -> set[str]:
    """The seats that hold a claim at this moment."""
    found = set()
    for claim in (out / ".work" / "claims").glob("*/*.claim"):
        try:
            found.add(claim.read_text().split()[0])
        except (OSError, IndexError):  # given up, or not yet written
            continue
    return found


def test_one_of_three_is_killed_and_started_again(source: Path, tmp_path: Path, undisturbed: dict[str, str]) -> None:
    out = tmp_path / "corpus"
    second = task(2, source, out)
    assert wait_for(lambda: "2" in makers(out), second), "it is killed while it holds a part"
    others = [task(number, source, out) for number in (1, TASKS)]
    second.kill()
    second.communicate()
    end([*others, task(2, source, out)])
    assert contents(out) == undisturbed


def test_the_others_end_without_one_that_stays_dead(
    source: Path, tmp_path: Path, undisturbed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task is stopped while it holds a claim and never goes on; another waits for its lease to run out."""
    out = tmp_path / "corpus"
    held = task(1, source, out)
    assert wait_for(lambda: "1" in makers(out), held)
    held.send_signal(signal.SIGSTOP)
    try:
        monkeypatch.setattr(array_jobs, "LEASE_SECONDS", 2.0)
        begun = time.monotonic()
        prepare(source, out, options=PrepareOptions(**OPTIONS, workers=1, array_task="2/3"))
        assert time.monotonic() - begun > 2.0
        assert contents(out) == undisturbed
    finally:
        held.send_signal(signal.SIGCONT)
    end([held])
    assert contents(out) == undisturbed, "waking up, it sees that the corpus is there, and spoils nothing"


def test_all_killed_and_the_work_ended_by_an_ordinary_run(
    source: Path, tmp_path: Path, undisturbed: dict[str, str]
) -> None:
    out = tmp_path / "corpus"
    tasks = [task(number, source, out, hold(out, "tokens", 2)) for number in (1, 2)]
    assert wait_for(lambda: made_parts(out, "tokens") >= 2, tasks[0])
    with pytest.raises(BertsmithError, match="another process is preparing"):
        prepare(source, out, options=PrepareOptions(**OPTIONS, workers=1))
    for process in tasks:
        process.kill()
        process.communicate()
    made = {path: path.stat().st_mtime_ns for path in (out / ".work" / "cleaned").glob("*/part.done")}
    assert made
    prepare(source, out, options=PrepareOptions(**OPTIONS, workers=1))
    assert contents(out) == undisturbed


def test_tasks_of_another_command_are_refused(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "corpus"
    first = task(1, source, out, hold(out, "cleaned", 1))
    assert wait_for(lambda: made_parts(out, "cleaned") >= 1, first)
    with pytest.raises(BertsmithError, match="prepare something else"):
        prepare(source, out, options=PrepareOptions(**{**OPTIONS, "held_out": 0.3}, array_task="2/3"))
    (tmp_path / "go").touch()
    end([first])


def test_a_task_that_comes_late_finds_the_corpus(source: Path, tmp_path: Path, undisturbed: dict[str, str]) -> None:
    for number in (1, 2):
        prepare(source, tmp_path / "corpus", options=PrepareOptions(**OPTIONS, workers=1, array_task=f"{number}/2"))
        assert contents(tmp_path / "corpus") == undisturbed


@pytest.mark.parametrize("wrong", ["0/3", "4/3", "3", "a/b", "-1/2", ""])
def test_a_seat_that_there_is_not(wrong: str) -> None:
    with pytest.raises(BertsmithError, match="array-task"):
        Seat.parse(wrong)
    with pytest.raises(BertsmithError, match="array-task"):
        PrepareOptions(array_task=wrong).check()


def test_the_sbatch_file_under_slurms_variables(
    source: Path, tmp_path: Path, undisturbed: dict[str, str], repository: Path
) -> None:
    out, script = tmp_path / "corpus", repository / "docs" / "slurm" / "prepare.sbatch"
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in OPTIONS.items()]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    tasks = [
        subprocess.Popen(
            ["bash", str(script), str(source), "--out", str(out), "--quiet", *flags],
            env={**os.environ, "PATH": path, "SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_TASK_MAX": "2"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in (1, 2)
    ]
    end(tasks)
    assert contents(out) == undisturbed


def test_a_task_that_is_late_for_the_end_leaves_no_work_behind(tmp_path: Path) -> None:
    """Another one has published, and the work under this one's hands went away; it began to put a corpus together."""
    out = tmp_path / "corpus"
    with open_engine(out, "a plan", engine="local", address=None, array_task="1/2", workers=1):
        (out / ".work" / "corpus").mkdir(parents=True)
        (out / ".work" / "corpus" / ".of").write_text("a plan")
        (out / "corpus.json").write_text("{}")
        raise FileNotFoundError(out / ".work" / "parts")
    assert [each.name for each in out.iterdir()] == ["corpus.json"]
