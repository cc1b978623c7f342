"""Promises of saves: they change nothing, the newest whole one is found, and those that were to stay are there."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.training.checkpoints import disk, saver, step_folders
from bertsmith.training.loop import Trainer
from bertsmith.training.objective import Step
from bertsmith.training.pretrain import Run, pretrain
from bertsmith.training.records.meters import MetricsFile
from made_checkpoints import DAMAGES, STATE, flip, names
from made_runs import LENGTH, SAVING, corpus, figures, save_recipe, small_corpus, small_recipe, stopped_after, weights


def test_saves_change_no_figure(unbroken: Run, tmp_path: Path) -> None:
    often = pretrain(small_recipe(**LENGTH, save_every=1, keep=99), corpus(), tmp_path / "run")
    assert len(names(often.folder)) == 13
    assert figures(often) == figures(unbroken)
    assert weights(often) == weights(unbroken)


@pytest.mark.parametrize(
    ("name", "damage"),
    [(STATE, "a flipped bit"), ("position.json", "gone"), ("checksums.json", "cut")],
)
def test_from_the_one_before_a_damaged_one_the_run_is_unbroken(
    unbroken: Run, stopped: Path, tmp_path: Path, said: pytest.LogCaptureFixture, name: str, damage: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    DAMAGES[damage](folder / "step-00000008" / name)
    resumed = pretrain(SAVING, corpus(), folder, resume=True)
    assert "warning: step-00000008 is damaged, so step-00000006 is taken" in said.text
    assert "resuming after step 6" in said.text
    assert figures(resumed) == figures(unbroken), "metrics.jsonl was cut back to the checkpoint taken"
    assert weights(resumed) == weights(unbroken)
    assert names(folder) == ["step-00000009", "step-00000012", "step-00000013"]


def test_where_none_is_whole_the_command_says_so_once(
    stopped: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    for each in step_folders(folder):
        flip(each / STATE)
    save_recipe(SAVING, tmp_path / "recipe.yaml")
    call = ["pretrain", str(tmp_path / "recipe.yaml"), "--corpus", str(small_corpus()), "--out", str(folder)]
    assert main([*call, "--resume"]) == 2
    said = capfd.readouterr().err
    assert "no checkpoint of this run is whole" in said
    assert said.count("  where: ") == said.count("  fix:   ") == 1
    assert "Traceback" not in said
    assert names(folder) == names(stopped)
    for each in step_folders(folder):
        shutil.rmtree(each)
    assert main([*call, "--resume"]) == 0, "as the message says"


def test_leftovers_of_a_killed_save_are_cleared(unbroken: Run, stopped: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    for name in (".step-00000009.123.part", ".best-00000009.77.part"):
        (folder / name).mkdir()
        (folder / name / STATE).write_bytes(bytes(1000))
    os.replace(folder / "step-00000008", folder / ".step-00000008.123.old")  # killed between two renames
    resumed = pretrain(SAVING, corpus(), folder, resume=True)
    assert figures(resumed) == figures(unbroken)
    assert not [each.name for each in folder.iterdir() if each.name.startswith(".") and each.name != ".lock"]


def test_every_nth_is_written_and_kept_and_n_may_change(
    unbroken: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted over the whole run, and whatever save_every says."""
    recipe = small_recipe(**LENGTH, save_every=5, keep=1, keep_every=4)
    stopped_after(7, monkeypatch, recipe, tmp_path / "run")
    assert names(tmp_path / "run") == ["step-00000004", "step-00000007"]
    other = small_recipe(**LENGTH, save_every=5, keep=1, keep_every=6)
    resumed = pretrain(other, corpus(), tmp_path / "run", resume=True)
    assert names(resumed.folder) == ["step-00000012", "step-00000013"]
    assert figures(resumed) == figures(unbroken)
    steady = pretrain(recipe, corpus(), tmp_path / "steady")
    assert names(steady.folder) == [f"step-{step:08d}" for step in (4, 8, 12, 13)]
    with pytest.raises(BertsmithError, match="keep_every is -1"):
        small_recipe(keep_every=-1)


def test_checkpoints_that_a_kill_left_are_removed_when_the_run_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before another one is written."""
    recipe, run, seen = small_recipe(**LENGTH, save_every=2, keep=3), tmp_path / "run", []
    stopped_after(8, monkeypatch, recipe, run)
    assert names(run) == ["step-00000004", "step-00000006", "step-00000008"]
    advance = Trainer._advance

    def advancing(trainer: Trainer, step: Step) -> None:
        seen.append(names(run))
        advance(trainer, step)

    monkeypatch.setattr(Trainer, "_advance", advancing)
    pretrain(replace(recipe, keep=1), corpus(), run, resume=True)
    assert seen[0] == ["step-00000008"]


def test_where_time_ends_a_run_the_disk_is_that_of_no_number_of_steps(
    tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    recipe = small_recipe(phase1__steps=1, phase2__steps=1, save_every=2, keep=2, keep_every=3, hours=1e-5)
    pretrain(recipe, corpus(), tmp_path / "run")
    (line,) = [each for each in said.messages if "will hold up to" in each]
    assert ": 3 checkpoints of " in line, "two that are kept, and the one being written, whatever the recipe's steps"
    assert "and a checkpoint more for every 3 steps that it will have taken" in line


def test_a_run_of_few_steps_needs_no_disk_for_more_checkpoints(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    pretrain(small_recipe(phase1__steps=1, phase2__steps=0, keep=3), corpus(), tmp_path / "run")
    assert ": 1 checkpoint of " in said.text


def test_metrics_are_on_the_disk_before_the_checkpoint_that_builds_on_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a host that loses its power could have a checkpoint and not the lines before it."""
    done: list[str] = []
    for where, name in ((MetricsFile, "sync"), (saver, "write_step")):
        work = getattr(where, name)
        monkeypatch.setattr(where, name, lambda *given, name=name, work=work: done.append(name) or work(*given))
    pretrain(small_recipe(phase1__steps=4, phase2__steps=0, save_every=2), corpus(), tmp_path / "run")
    assert done == ["sync", "write_step"] * 2


def bytes_of(text: str) -> float:
    number, unit = text.split()
    return float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


@pytest.mark.parametrize("free", [10**12, 100_000])
def test_the_disk_that_a_run_needs_is_foretold(
    tmp_path: Path, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    real = shutil.disk_usage
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda path: real(path)._replace(free=free))
    recipe = small_recipe(phase1__steps=8, phase2__steps=0, save_every=2, keep=2, keep_every=3)
    run = pretrain(recipe, corpus(), tmp_path / "run")
    (line,) = [each for each in said.messages if "will hold up to" in each]
    checkpoint, model = (sum(path.stat().st_size for path in each.iterdir()) for each in (
        step_folders(run.folder)[-1], run.model
    ))  # fmt: skip
    found = re.search(r"up to ([\d.]+ \w+): 5 checkpoints of ([\d.]+ \w+) .*a finished model of ([\d.]+ \w+)", line)
    assert found is not None, line
    total, each, finished = map(bytes_of, found.groups())
    assert each == pytest.approx(checkpoint, rel=0.1)
    assert finished == pytest.approx((run.model / "model.safetensors").stat().st_size, rel=0.1)
    assert total == pytest.approx(5 * each + finished, rel=0.05)
    assert model < 2 * finished
    if free > total:
        assert line.endswith("1.0 TB are free")
    else:
        assert line.startswith("warning: disk: ")
        missing = re.search(r"but 100.0 kB are free, and ([\d.]+ \w+) are missing", line)
        assert missing is not None, line
        assert bytes_of(missing[1]) == pytest.approx(total - free, rel=0.05)


def test_what_is_there_already_counts(stopped: Path, tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    shutil.copytree(stopped, tmp_path / "run")
    pretrain(SAVING, corpus(), tmp_path / "run", resume=True)
    (line,) = [each for each in said.messages if "will hold up to" in each]
    there = sum(path.stat().st_size for each in step_folders(stopped) for path in each.iterdir())
    found = re.search(r"\(([\d.]+ \w+) are there already\)", line)
    assert found is not None, line
    assert bytes_of(found[1]) == pytest.approx(there, rel=0.05)


def test_every_file_of_a_checkpoint_has_its_checksum(stopped: Path) -> None:
    for folder in step_folders(stopped):
        known = json.loads((folder / "checksums.json").read_text(encoding="utf-8"))
        assert known.keys() == {each.name for each in folder.iterdir()} - {"checksums.json"}
        assert all(re.fullmatch(r"[0-9a-f]{64}", each) for each in known.values())


def resumed_command(folder: Path, capfd: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Status and error output of `pretrain --resume`."""
    recipe = folder.with_name("recipe.yaml")
    save_recipe(SAVING, recipe)
    status = main(["pretrain", str(recipe), "--corpus", str(small_corpus()), "--out", str(folder), "--resume"])
    return status, capfd.readouterr().err


@pytest.mark.parametrize("name", ["model", "best"])
def test_what_is_in_the_way_of_the_model_is_told_before_the_run_goes_on(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    (folder / name).mkdir()
    (folder / name / "notes").write_text("mine", encoding="utf-8")
    monkeypatch.setattr(Trainer, "run", None)
    with pytest.raises(BertsmithError, match="is there already and is not a model folder"):
        pretrain(SAVING, corpus(), folder, resume=True)


def test_a_run_without_its_checkpoints_begins_anew_and_says_so(
    unbroken: Run, stopped: Path, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder, ignore=shutil.ignore_patterns("step-*"))
    resumed = pretrain(SAVING, corpus(), folder, resume=True)
    assert f"warning: there is no checkpoint in {folder}, so the run begins anew at its first step" in said.text
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


@pytest.mark.parametrize("damage", ["", "{", "null"])
def test_checkpoints_outlive_their_run_json(
    unbroken: Run, stopped: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], damage: str
) -> None:
    folder, other = tmp_path / "run", tmp_path / "other"
    shutil.copytree(stopped, folder)
    (folder / "run.json").write_text(damage, encoding="utf-8")
    if not damage:
        (folder / "run.json").unlink()
    status, message = resumed_command(folder, capfd)
    assert status == 2
    assert "give the same command another --out, stop it, and copy the run.json that it wrote" in message
    with pytest.MonkeyPatch.context() as patch:
        stopped_after(1, patch, SAVING, other)
    shutil.copy(other / "run.json", folder)
    resumed = pretrain(SAVING, corpus(), folder, resume=True)
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


@pytest.mark.parametrize("damage", ["cut", "emptied", "gone"])
def test_a_finished_run_whose_model_is_damaged_is_not_called_finished(
    unbroken: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str], damage: str
) -> None:
    run = Run(tmp_path / "run")
    shutil.copytree(unbroken.folder, run.folder)
    DAMAGES[damage](run.model / "model.safetensors")
    status, message = resumed_command(run.folder, capfd)
    assert status == 2
    assert "this run is finished, and its model is damaged: " in message
    assert f"remove {run.model}: the same command then writes it from the last checkpoint" in message
    shutil.rmtree(run.model)
    assert resumed_command(run.folder, capfd)[0] == 0
    assert weights(run) == weights(unbroken)


@pytest.mark.parametrize("name", [".lock", "metrics.jsonl", "recipe.yaml", "step-00000003/position.json"])
@pytest.mark.parametrize("kind", ["folder", "link"])
def test_what_stands_in_place_of_a_file_is_no_bug(
    stopped: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str, kind: str
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    (folder / name).unlink(missing_ok=True)
    if kind == "folder":
        (folder / name).mkdir()
    else:
        (folder / name).symlink_to(tmp_path / "unmounted" / "file")
    status, message = resumed_command(folder, capfd)
    assert "Traceback" not in message
    assert status == 2 or name in ("recipe.yaml", "step-00000003/position.json")
