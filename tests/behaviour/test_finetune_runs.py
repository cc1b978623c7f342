"""Promises of a fine-tuning run: a folder as pre-training makes it, resumed to the bit, and faults that are named."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
import yaml

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.cli import main
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.finetuning import finish
from bertsmith.tasks.objective import TaskObjective
from bertsmith.tasks.results import FinetuneResult
from bertsmith.training.checkpoints import Position, saver, step_folders
from bertsmith.training.checkpoints.position import read_position
from bertsmith.training.loop import Trainer
from bertsmith.training.run_folder import Run
from made_kills import Moment, drawing
from made_pairs import pairs
from made_rows import QUICK, rows
from made_runs import figures, ran, signalled_after, weights

TRAIN, DEV, TEST = rows(96, 1), rows(40, 2), rows(40, 3)
SETTINGS = replace(QUICK, epochs=3, seeds=2, log_every=2, save_every=2, keep=2, dropout=0.2)


def write(folder: Path) -> list[str]:
    """The rows as files, and the command line that trains on them."""
    for name, made in (("train", TRAIN), ("dev", DEV), ("test", TEST)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    return [f"--{name}={folder / name}.jsonl" for name in ("train", "dev", "test")]


FLAGS = {
    "epochs": 3, "seeds": 2, "log-every": 2, "save-every": 2, "keep": 2, "dropout": 0.2, "learning-rate": 6e-3,
    "batch": 16, "max-length": 32, "device": "cpu", "precision": "fp32",
}  # fmt: skip


def command(model: Path, folder: Path, out: Path) -> list[str]:
    flags = (f"--{name}={value}" for name, value in FLAGS.items())
    return ["finetune", "classify", "--model", str(model), *write(folder), "--out", str(out), *flags]


@pytest.fixture(scope="module")
def unbroken(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("unbroken")
    assert main(command(model, folder, folder / "run")) == 0
    return Run(folder / "run")


def test_each_step_draws_dropout_of_its_own(model: Path, tmp_path: Path) -> None:
    """Every step is on the same two rows with the same weights: the rate is too low to change one in fp32."""

    def losses(name: str, dropout: float) -> list[float]:
        made = replace(QUICK, epochs=8, learning_rate=1e-30, log_every=1, dropout=dropout, attention_dropout=0.0)
        bertsmith.finetune("classify", model, DEV[4:6], DEV, tmp_path / name, settings=made)
        return [each["loss"] for each in Run(tmp_path / name).metrics("train")]

    assert {row["label"] for row in DEV[4:6]} == {"praise", "blame"}
    assert max(without := losses("without", 0.0)) - min(without) < 1e-5, "in either order of the rows"
    drawn = losses("drawn", 0.5)
    assert len(set(drawn)) == 8, "each of the two orders comes several times"
    assert losses("again", 0.5) == drawn


def test_each_seed_draws_dropout_of_its_own(model: Path, tmp_path: Path) -> None:
    """Vectors come of no head, which each seed would draw too; so without dropout all seeds have the same loss."""

    def losses(seed: int, dropout: float) -> list[float]:
        made = replace(QUICK, epochs=8, learning_rate=1e-30, log_every=1, dropout=dropout, attention_dropout=0.0)
        out = tmp_path / f"{seed} {dropout}"
        bertsmith.finetune("embed", model, pairs(2, 1), pairs(4, 2), out, settings=replace(made, seed=seed))
        return [each["loss"] for each in Run(out).metrics("train")]

    without = losses(1, 0.0) + losses(2, 0.0)
    assert max(without) - min(without) < 1e-5
    assert not set(losses(1, 0.5)) & set(losses(2, 0.5))


def test_the_folder_is_a_run_folder(unbroken: Run, model: Path) -> None:
    recipe = yaml.safe_load((unbroken.folder / "recipe.yaml").read_text())
    assert (recipe["task"], recipe["model"]) == ("classify", str(model))
    assert recipe["train"].endswith("train.jsonl")
    assert (recipe["learning_rate"], recipe["seeds"], recipe["positive"]) == (6e-3, 2, None)
    known = json.loads((unbroken.folder / "run.json").read_text())
    assert known["begun_on"]["device"] == "cpu"
    assert known["begun_on"]["precision"] == "fp32"
    steps = [each["step"] for each in unbroken.metrics()]
    assert steps == sorted(steps), "one step count rises through both seeds"
    assert {each["seed"] for each in unbroken.metrics("train")} == {42, 43}
    assert len(unbroken.metrics("evaluation")) == 6
    assert unbroken.is_finished()
    written = json.loads((unbroken.folder / "finetune.json").read_text())
    assert written == {**written, "train_rows": 96, "dev_rows": 40, "test_rows": 40, "truncated_rows": 0}
    assert written["truncated"]["dev"] == {"rows": 0, "tokens": 0}
    assert len(written["test_scores"]) == len(written["last_epoch_scores"]) == 2
    assert FinetuneResult.from_dict(written, unbroken.folder).to_dict() == written


def test_the_kept_weights_are_those_of_the_best_epoch_of_all_seeds(unbroken: Run) -> None:
    scores = [each["accuracy"] for each in unbroken.metrics("evaluation")]
    for part, made, name in (("dev", DEV, "accuracy"), ("test", TEST, "test_accuracy")):
        answers = Predictor(unbroken.folder, "cpu", precision="fp32")(made)
        right = sum(each["label"] == row["label"] for each, row in zip(answers, made, strict=True)) / len(made)
        best = unbroken.metrics("evaluation")[scores.index(max(scores))]
        assert right == pytest.approx(best[name]), part


def commanded(call: list[str]) -> None:
    assert main(call) == 0


def killed_and_resumed(model: Path, folder: Path, moments: list[int], draw: random.Random) -> Run:
    call = command(model, folder, folder / "run")
    for step in moments:
        ran(commanded, 1, [*call, "--resume", "--quiet"], kill=Moment(step, draw.random() * 0.1))
    assert main([*call, "--resume"]) == 0
    return Run(folder / "run")


def test_killed_in_both_seeds_and_resumed_is_unbroken(unbroken: Run, model: Path, tmp_path: Path) -> None:
    draw = drawing()
    resumed = killed_and_resumed(model, tmp_path, [draw.randint(1, 17), draw.randint(18, 33)], draw)
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)
    assert not list(resumed.folder.glob(".*.part"))


@pytest.mark.slow
def test_killed_at_ten_random_moments_over_two_seeds_is_unbroken(unbroken: Run, model: Path, tmp_path: Path) -> None:
    draw = drawing()
    resumed = killed_and_resumed(model, tmp_path, sorted(draw.randint(0, 36) for _ in range(10)), draw)
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


def test_sigterm_saves_and_the_rest_is_as_unbroken(
    unbroken: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = command(model, tmp_path, tmp_path / "run")
    with monkeypatch.context() as patch:
        signalled_after(5, patch)
        assert main(call) == 143
    run = Run(tmp_path / "run")
    assert not run.is_finished()
    assert step_folders(run.folder)
    assert main([*call, "--resume"]) == 0
    assert figures(run) == figures(unbroken)
    assert weights(run) == weights(unbroken)


def test_a_finished_run_is_not_trained_again(unbroken: Run, model: Path, tmp_path: Path) -> None:
    before = weights(unbroken)
    call = command(model, unbroken.folder.parent, unbroken.folder)
    assert main([*call, "--resume"]) == 0
    assert weights(unbroken) == before
    assert main(call) == 2


def test_other_rows_or_settings_are_another_run(unbroken: Run, model: Path, tmp_path: Path, capsys) -> None:
    call = [*command(model, tmp_path, unbroken.folder), "--resume"]
    assert main([*call, "--learning-rate", "1e-3"]) == 2
    assert "settings.learning_rate was 0.006, is 0.001" in capsys.readouterr().err
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in TRAIN[1:]))
    assert main(call) == 2
    assert "train_rows was" in capsys.readouterr().err


def test_no_extra_model_stays_in_memory_between_seeds(model: Path, tmp_path: Path, monkeypatch) -> None:
    import gc

    from bertsmith.optim.clipped import ClippedOptimizer
    from bertsmith.tasks.finetuning import finish as module
    from bertsmith.tasks.kinds.pooled import Classifier

    kinds = (Classifier, ClippedOptimizer)
    held: list[list[int]] = []
    really = module.results_of

    def counted() -> list[int]:
        # By the type: `isinstance` asks for `__class__`, which makes lazy modules import.
        types = [type(each) for each in gc.get_objects()]
        return [sum(issubclass(each, kind) for each in types) for kind in kinds]

    def counting(*arguments):  # type: ignore[no-untyped-def]
        gc.collect()
        held.append(counted())
        return really(*arguments)

    monkeypatch.setattr(module, "results_of", counting)
    gc.collect()
    before = counted()
    bertsmith.finetune("classify", model, TRAIN, DEV, None, settings=SETTINGS)
    assert held == [[count + 1 for count in before]], "one model and one optimizer, with its moments"


def test_best_weights_are_whole_before_the_step_folder_that_refers_to_them(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, seen = saver.write_step, []

    def looking(run, position, tensors):  # type: ignore[no-untyped-def]
        write(run, position, tensors)
        folders = step_folders(run)
        for each in folders:
            best = json.loads((each / "position.json").read_text())["best"]
            if best is not None:
                path = run / f"best-{best['step']:08d}" / "weights.safetensors"
                seen.append(len(safetensors.torch.load_file(path)))

    monkeypatch.setattr(saver, "write_step", looking)
    result = bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "run", settings=SETTINGS)
    assert len(seen) > 4
    assert result.scores


@pytest.mark.parametrize("full", ["for step folders", "for all"])
def test_a_disk_without_room_for_the_last_checkpoint_costs_no_model(
    unbroken: Run,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    said: pytest.LogCaptureFixture,
    full: str,
) -> None:
    write_step, write_best = saver.write_step, saver.write_best
    best = next(each["step"] for each in unbroken.metrics("evaluation"))

    def refuse_step(run: Path, position: Position, tensors: dict[str, torch.Tensor]) -> None:
        if position.step > best:
            raise OSError(28, "No space left on device")
        write_step(run, position, tensors)

    def refuse_best(run: Path, step: int, weights: dict[str, torch.Tensor]) -> None:
        if full == "for all":
            raise OSError(28, "No space left on device")
        write_best(run, step, weights)

    monkeypatch.setattr(saver, "write_step", refuse_step)
    monkeypatch.setattr(saver, "write_best", refuse_best)
    if full == "for all":
        with pytest.raises(BertsmithError, match="No space left"):
            call(model, tmp_path / "run")
        assert not (tmp_path / "run" / "model").exists()
    else:
        result = call(model, tmp_path / "run")
        assert "step-00000036 was not written: could not write: No space left" in said.text
        assert weights(Run(tmp_path / "run")) == weights(unbroken)
        assert len(result.seeds) == 2


@pytest.fixture(scope="module")
def almost_finished(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a command that was killed before it wrote the model."""
    folder = tmp_path_factory.mktemp("almost")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finish, "_save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            call(model, folder / "run")
    assert [each.name for each in step_folders(folder / "run")] == ["step-00000034", "step-00000036"]
    assert list((folder / "run").glob("best-*"))
    return folder


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def call(model: Path, out: Path, **fields: int) -> FinetuneResult:
    settings = replace(SETTINGS, learning_rate=6e-3, **fields)
    return bertsmith.finetune("classify", model, TRAIN, DEV, out, test=TEST, settings=settings, resume=out.exists())


def test_a_finished_run_needs_no_checkpoints_and_says_that_it_removed_them(
    almost_finished: Path, model: Path, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(almost_finished / "run", tmp_path / "run")
    freed = [*step_folders(tmp_path / "run"), *(tmp_path / "run").glob("best-*")]
    call(model, tmp_path / "run")
    assert Run(tmp_path / "run").is_finished()
    assert not [each.name for each in (tmp_path / "run").iterdir() if each.name.startswith(("step-", "best-"))]
    assert f"removed checkpoints and best weights ({len(freed)} folders, " in said.text
    left = [path for path in (tmp_path / "run").rglob("*") if "report" not in path.parts]
    assert sum(path.stat().st_size for path in left) < 2 * len(weights(Run(tmp_path / "run")))
    shutil.copytree(almost_finished / "run" / "step-00000034", tmp_path / "run" / "step-00000034")
    said.clear()
    call(model, tmp_path / "run")
    assert not step_folders(tmp_path / "run"), "where a kill came between the model and that"
    assert "removed checkpoints and best weights (1 folder, " in said.text


def test_checkpoints_that_are_kept_for_good_stay_with_the_best_weights_they_refer_to(
    almost_finished: Path, model: Path, tmp_path: Path
) -> None:
    shutil.copytree(almost_finished / "run", tmp_path / "run")
    call(model, tmp_path / "run", keep_every=17)
    (kept,) = step_folders(tmp_path / "run")
    assert kept.name == "step-00000034"
    position = json.loads((kept / "position.json").read_text())
    bests = {f"best-{best['step']:08d}" for best in (position["best"], *position["kept"])}
    assert {each.name for each in (tmp_path / "run").glob("best-*")} == bests


def test_the_score_that_chose_the_epoch_is_said_to_have_done_so(unbroken: Run, model: Path, tmp_path: Path) -> None:
    settings = replace(SETTINGS, seeds=1)
    line = bertsmith.finetune("classify", model, TRAIN, DEV, None, test=TEST, settings=settings).line()
    assert re.search(r"\(best of 3 epochs on dev; last epoch [01]\.\d{4};", line)
    assert "; test accuracy " in line


# By what is lost of seed 42, which has ended, or of the last one: whether a record is.
LOST = {
    "the last one's end": lambda each: each["step"] > 20,
    "an evaluation": lambda each: each["kind"] == "evaluation" and each["step"] == 12,
    "an end": lambda each: 12 < each["step"] <= 18,
    "all": lambda each: each["step"] <= 18,
    "the losses of an epoch": lambda each: each["kind"] == "train" and 6 < each["step"] <= 12,
}


@pytest.mark.parametrize("lost", LOST)
def test_a_metrics_file_that_lost_records_is_named_and_no_result_is_made_up(
    almost_finished: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    shutil.copytree(almost_finished / "run", tmp_path / "run")
    lose(tmp_path / "run", LOST[lost])
    monkeypatch.setattr(Trainer, "run", None)  # it is told before anything is trained
    seed = 43 if lost == "the last one's end" else 42
    with pytest.raises(BertsmithError, match=f"records of seed {seed} are missing") as caught:
        call(model, tmp_path / "run")
    assert caught.value.where == str(tmp_path / "run" / "metrics.jsonl")
    assert not (tmp_path / "run" / "model").exists()
    assert step_folders(tmp_path / "run")


def test_a_score_of_a_part_of_the_rows_that_was_lost_is_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = {"epochs": 6, "seeds": 2, "patience": 1, "folds": 2, "learning_curve": True}
    with monkeypatch.context() as patch:
        patch.setattr(finish, "_save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            call(model, tmp_path / "run", **parts)
    whole = (tmp_path / "run" / "metrics.jsonl").read_text()
    for kind, label in (("fold", 1), ("share", 10)):
        lose(tmp_path / "run", lambda each, of=(kind, label): each["kind"] == "evaluation" and of in each.items())
        with pytest.raises(BertsmithError, match=f"records of {kind} {label} are missing"):
            call(model, tmp_path / "run", **parts)
        (tmp_path / "run" / "metrics.jsonl").write_text(whole)
    assert call(model, tmp_path / "run", **parts).seeds[0].ended_early, "nothing is lost of a seed that patience ended"


def lose(run: Path, lost: Callable[[dict[str, Any]], bool]) -> None:
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [each for each in lines if not lost(json.loads(each))]
    assert 0 < len(kept) < len(lines)
    (run / "metrics.jsonl").write_text("".join(kept))


def test_a_signal_while_rows_are_measured_ends_it_and_it_is_done_again(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = replace(QUICK, epochs=2, micro_batch_tokens=64)
    tune = partial(bertsmith.finetune, "classify", model, TRAIN, DEV, settings=settings)
    unbroken = tune(out=tmp_path / "unbroken")
    usual = TaskObjective.evaluate

    def signalled(*rest: Any) -> dict[str, float]:
        signal.raise_signal(signal.SIGTERM)
        return usual(*rest)

    with monkeypatch.context() as patch:
        patch.setattr(TaskObjective, "evaluate", signalled)
        with pytest.raises(StoppedAfterSaving):
            tune(out=tmp_path / "run")
    assert read_position(step_folders(tmp_path / "run")[-1]).unmeasured
    resumed = tune(out=tmp_path / "run", resume=True)
    assert resumed.seeds == unbroken.seeds
    assert weights(Run(tmp_path / "run")) == weights(Run(tmp_path / "unbroken"))
