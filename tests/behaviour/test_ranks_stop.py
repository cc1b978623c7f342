"""A signal that reaches several ranks, or one of them, in the middle of a long step: all drop it, save and leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bertsmith.recipes.loader import save_recipe
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.run_folder import Run
from made_runs import figures, small_corpus, small_recipe, weights

# Many micro-batches a step, so that a signal falls between two of them.
LONG = small_recipe(phase1__steps=1, phase1__global_batch=1500, phase2__steps=0)


def start(folder: Path, out: str, *more: str) -> subprocess.Popen[str]:
    recipe = folder / "recipe.yaml"
    save_recipe(LONG, recipe)
    call = ["pretrain", str(recipe), "--corpus", str(small_corpus()), "--out", str(folder / out), "--ranks", "2", *more]
    return subprocess.Popen([sys.executable, "-m", "bertsmith", *call], stderr=subprocess.PIPE, text=True)


def ranks_of(launcher: int) -> list[int]:
    """The process numbers of the ranks, first to last."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            environment = (entry / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError, IndexError):
            continue
        if parent == launcher:
            found.update({int(each[5:]): int(entry.name) for each in environment if each.startswith(b"RANK=")})
    return [found[rank] for rank in sorted(found)]


def finished(process: subprocess.Popen[str], status: int = 0) -> str:
    """What it said, once it has ended with this status."""
    said = process.communicate(timeout=240)[1]
    assert process.returncode == status, said
    return said


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("unbroken")
    finished(start(folder, "run"))
    return Run(folder / "run")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="process numbers are looked up in /proc")
@pytest.mark.parametrize("whom", ["the launcher", "the second rank"])
def test_all_ranks_drop_the_unfinished_step_and_the_resumed_run_is_unbroken(
    whom: str, unbroken: Run, tmp_path: Path
) -> None:
    process = start(tmp_path, "run")
    metrics, end = tmp_path / "run" / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.exists() and metrics.read_text()) and time.monotonic() < end and process.poll() is None:
        time.sleep(0.01)
    time.sleep(0.2)
    os.kill(process.pid if whom == "the launcher" else ranks_of(process.pid)[1], signal.SIGTERM)
    assert "stopped at step" in finished(process, 143)
    assert (tmp_path / "run" / "stopped").exists()
    assert [each.name for each in step_folders(tmp_path / "run")] == ["step-00000000"]
    finished(start(tmp_path, "run", "--resume"))
    resumed = Run(tmp_path / "run")
    assert not (tmp_path / "run" / "stopped").exists()
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)
