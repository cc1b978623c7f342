"""Promise: whenever a command is killed, the folder that it was about to replace is not lost."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bertsmith.base import files
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.pretrain import pretrain
from bertsmith.training.run_folder import RunFacts, claim
from made_runs import corpus, small_recipe

# Replaces a folder, and is killed where its place is empty: after the first rename, before the second.
KILLED = """
import os, signal, sys
from pathlib import Path
from bertsmith.base import files
rename = os.replace
def last_rename(source, target):
    rename(source, target)
    os.kill(os.getpid(), signal.SIGKILL)
os.replace = last_rename
with files.whole_folder(Path(sys.argv[1])) as aside:
    (aside / "weights").write_text("new")
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A folder that a killed process left without its place."""
    model = tmp_path / "run" / "model"
    with files.whole_folder(model) as aside:
        (aside / "weights").write_text("old")
    done = subprocess.run([sys.executable, "-c", KILLED, str(model)], env=dict(os.environ), check=False)
    assert done.returncode == -signal.SIGKILL
    assert not model.exists()
    return model


def left_behind(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name not in ("run.json", "recipe.yaml"))


def test_the_run_folder_that_is_claimed_has_its_folder_again(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    claim(model.parent, RunFacts({"seed": 1}, "", {}), None)
    assert (model / "weights").read_text() == "old"
    assert left_behind(model.parent) == ["model"]
    assert f"{model} was restored" in caplog.text


def test_a_run_resumes_from_the_checkpoint_that_was_about_to_be_replaced(tmp_path: Path) -> None:
    run = pretrain(small_recipe(), corpus(), tmp_path / "run")
    newest = step_folders(run.folder)[-1]
    for step in step_folders(run.folder)[:-1]:
        shutil.rmtree(step)
    shutil.rmtree(run.model)
    newest.rename(newest.with_name(f".{newest.name}.12.old"))
    before = run.metrics("train")
    pretrain(small_recipe(), corpus(), run.folder, resume=True)
    assert run.metrics("train") == before, "no step was trained again"


def test_the_next_replacement_has_it_again_and_keeps_it_should_it_fail(model: Path) -> None:
    seen: list[str] = []

    def half() -> None:
        with files.whole_folder(model):
            seen.append((model / "weights").read_text())
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        half()
    assert seen == ["old"]
    assert (model / "weights").read_text() == "old"


def test_the_next_replacement_leaves_nothing_of_the_killed_one(model: Path) -> None:
    with files.whole_folder(model) as aside:
        (aside / "weights").write_text("newest")
    assert (model / "weights").read_text() == "newest"
    assert [name for name in left_behind(model.parent) if name.endswith(".old")] == []
