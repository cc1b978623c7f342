"""A run folder that is moved away, cleared or taken by another run while its own run trains."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bertsmith
from bertsmith.base import files, ranks
from bertsmith.base.errors import BertsmithError
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.loop import Trainer
from bertsmith.training.objective import Step
from bertsmith.training.pretrain import Run, pretrain
from made_locks import holder
from made_rows import QUICK, rows
from made_runs import PATIENCE, SAVING, corpus, figures, ran, stopped_after, weights

TWO = replace(QUICK, epochs=2, seeds=2, side_by_side=True)


def changed_at_step_4(patch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Has something happen to a run's folder after its fourth step, when the save of the third is on the disk."""
    advance = Trainer._advance

    def advanced(trainer: Trainer, step: Step) -> None:
        advance(trainer, step)
        if trainer.position.step == 4:
            assert trainer.saver._thread is not None
            trainer.saver._thread.join()
            change()

    patch.setattr(Trainer, "_advance", advanced)


@pytest.mark.parametrize("gone", ["folder", "metrics.jsonl"])
def test_a_folder_that_is_removed_while_the_run_trains_is_made_anew_and_the_run_can_be_resumed(
    unbroken: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture, gone: str
) -> None:
    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        gone_now = folder if gone == "folder" else folder / gone
        changed_at_step_4(patch, lambda: os.rename(gone_now, tmp_path / "elsewhere"))
        stopped_after(8, patch, SAVING, folder)
    assert (
        "metrics.jsonl was removed or renamed while the run writes it; it is there again, with all that it held"
        in said.text
    )
    assert ("run.json was removed, renamed or damaged while the run trains" in said.text) == (gone == "folder")
    resumed = pretrain(SAVING, corpus(), folder, resume=True)
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


def test_metrics_that_an_editor_replaces_are_written_on_and_what_it_wrote_is_kept(
    unbroken: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    """As `sed -i` and most editors save."""
    folder = tmp_path / "run"
    metrics = folder / "metrics.jsonl"

    def edit() -> None:
        (folder / "edited").write_text(f"a note\n{metrics.read_text()}")
        os.replace(folder / "edited", metrics)

    with monkeypatch.context() as patch:
        changed_at_step_4(patch, edit)
        stopped_after(8, patch, SAVING, folder)
    (warning,) = [each for each in said.messages if "was replaced while the run writes it" in each]
    assert warning.endswith(
        "it is there again, with all that it held, and the file that took its place is kept as metrics.jsonl.other-1"
    )
    assert (folder / "metrics.jsonl.other-1").read_text().startswith('a note\n{"kind": "start"')
    resumed = pretrain(SAVING, corpus(), folder, resume=True)
    assert figures(resumed) == figures(unbroken)


@pytest.mark.parametrize("theirs", ["training", "other", "same"])
def test_a_folder_that_another_run_has_taken_meanwhile_is_left_to_it(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture, theirs: str
) -> None:
    """The folder was moved away while the run trained, and another process trains in its place; or it did, another
    run or the same command once more, and has ended."""
    folder = tmp_path / "run"
    ends = ExitStack()

    def take() -> None:
        os.rename(folder, tmp_path / "moved")
        if theirs == "training":
            ends.enter_context(holder(folder))
            shutil.copy(tmp_path / "moved" / "run.json", folder)
        elif theirs == "other":
            folder.mkdir()
            (folder / "run.json").write_text('{"recipe.seed": 99}')
        else:
            shutil.copytree(stopped, folder)
        for name in ("metrics.jsonl", "events.jsonl"):
            (folder / name).write_text("theirs\nas they write")
        before.extend(listed(folder))

    before: list[str] = []
    with ends, monkeypatch.context() as patch:
        changed_at_step_4(patch, take)
        taken = "another process is training in this folder"
        with pytest.raises(BertsmithError, match=taken if theirs == "training" else "this folder is another run's now"):
            pretrain(SAVING, corpus(), folder)
        for name in ("metrics.jsonl", "events.jsonl"):
            assert (folder / name).read_text() == "theirs\nas they write"
        assert listed(folder) == before, "neither checkpoints nor a model"
    assert "step-00000006 could not be written: " in said.text
    assert "lines could not be written to" in said.text
    assert [each.name for each in step_folders(tmp_path / "moved")] == ["step-00000003"]


def test_a_file_in_place_of_the_run_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "run"

    def replace_by_a_file() -> None:
        os.rename(folder, tmp_path / "moved")
        folder.write_text("mine")

    with monkeypatch.context() as patch:
        changed_at_step_4(patch, replace_by_a_file)
        with pytest.raises(BertsmithError, match="a file is in the way of this folder"):
            pretrain(SAVING, corpus(), folder)
    assert folder.read_text() == "mine"


def listed(folder: Path) -> list[str]:
    return sorted(str(each.relative_to(folder)) for each in folder.rglob("*"))


def test_a_folder_whose_oldest_files_are_deleted_while_the_run_trains_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    """As where a shared disk is cleared of what is old."""
    folder = tmp_path / "run"

    def clear() -> None:
        for name in ("run.json", ".lock"):
            (folder / name).unlink()

    with monkeypatch.context() as patch:
        changed_at_step_4(patch, clear)
        assert pretrain(SAVING, corpus(), folder).is_finished()
    assert "run.json was removed, renamed or damaged while the run trains; it is there again" in said.text
    assert json.loads((folder / "run.json").read_text(encoding="utf-8"))["begun_on"]["start"]


def taken_by_another_run(model: Path, folder: Path) -> None:
    """What every rank does: at the second one's first step another run takes the folder, and both train on."""
    advance, number, run = Trainer._advance, ranks.rank(), folder / "run"

    def advancing(self: Trainer, step: Step) -> None:
        advance(self, step)
        if self.position.step != 1:
            return
        if number:
            assert files.wait_for(folder / "first is there", PATIENCE)
            run.rename(folder / "moved")
            files.write_text(run / "run.json", '{"task": "classify"}')
            files.write_text(folder / "taken", "")
        else:
            files.write_text(folder / "first is there", "")
            assert files.wait_for(folder / "taken", PATIENCE)

    with pytest.MonkeyPatch.context() as patch:
        torch.set_num_threads(1)
        patch.setattr(Trainer, "_advance", advancing)
        with pytest.raises(BertsmithError, match="this folder is another run's now"):
            bertsmith.finetune("classify", model, rows(70, 1), rows(30, 2), run, settings=TWO)


def test_a_folder_that_another_run_has_taken_is_left_to_it_by_every_rank(model: Path, tmp_path: Path) -> None:
    ran(taken_by_another_run, 2, model, tmp_path)
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["run.json"]
