"""A disk that fills up while a run trains costs neither the run nor what was saved before; the disks here are real."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import bertsmith
from bertsmith.base.errors import BertsmithError
from bertsmith.cli import main
from bertsmith.tasks.results import FinetuneResult
from bertsmith.training.checkpoints import newest_whole, saver
from bertsmith.training.loop import Trainer
from bertsmith.training.objective import Step
from bertsmith.training.pretrain import Run, pretrain
from made_checkpoints import fill, names, small_disk, warnings
from made_rows import QUICK, made_model, rows
from made_runs import corpus, figures, save_recipe, small_corpus, small_recipe, weights

LENGTH = {"phase1__steps": 20, "phase2__steps": 4, "evaluate_every": 8}
RECIPE = small_recipe(**LENGTH, save_every=2, keep=2)
FULL_AFTER, FREE_AFTER = 7, 17


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return pretrain(small_recipe(**LENGTH), corpus(), tmp_path_factory.mktemp("unbroken") / "run")


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 6_000_000) as folder:
        yield folder


@pytest.fixture
def after(monkeypatch: pytest.MonkeyPatch) -> dict[int, Callable[[Trainer], object]]:
    """What is done after a step, when the save before it is on the disk."""
    actions: dict[int, Callable[[Trainer], object]] = {}
    advance = Trainer._advance

    def advancing(self: Trainer, step: Step) -> None:
        advance(self, step)
        if self.position.step in actions:
            self.saver._end_last()
            actions[self.position.step](self)

    monkeypatch.setattr(Trainer, "_advance", advancing)
    return actions


def command(folder: Path, run: Path) -> list[str]:
    save_recipe(RECIPE, folder / "recipe.yaml")
    return ["pretrain", str(folder / "recipe.yaml"), "--corpus", str(small_corpus()), "--out", str(run)]


def test_training_continues_and_saves_again_when_there_is_space(
    unbroken: Run, small: Path, after: dict, said: pytest.LogCaptureFixture
) -> None:
    run, seen = small / "run", []
    after[FULL_AFTER] = lambda _: fill(small)

    def free(trainer: Trainer) -> None:
        seen.append((names(run), newest_whole(run), sorted(each.name for each in run.glob(".*.part"))))
        (small / "filler").unlink()

    after[FREE_AFTER] = free
    finished = pretrain(RECIPE, corpus(), run)
    assert seen == [(["step-00000004", "step-00000006"], run / "step-00000006", [])]
    refused = [each for each in warnings(said) if "could not be written" in each]
    assert [each.split()[1] for each in refused] == [f"step-{step:08d}" for step in range(8, FREE_AFTER, 2)]
    assert all("No space left on device" in each for each in refused)
    assert all(each.endswith("kept: step-00000004, step-00000006") for each in refused)
    lines = [each for each in warnings(said) if "metrics.jsonl: No space left" in each and "kept in memory" in each]
    assert len(lines) == 1, "once, and not for every line"
    assert f"what {run / 'metrics.jsonl'} lacked is written now" in said.messages
    assert figures(finished) == figures(unbroken), "no line of metrics is lost"
    assert weights(finished) == weights(unbroken)
    assert names(run) == ["step-00000022", "step-00000024"]


def test_a_run_whose_model_cannot_be_written_ends_with_status_2_and_what_was_saved_is_there(
    unbroken: Run, small: Path, tmp_path: Path, after: dict, capfd: pytest.CaptureFixture[str]
) -> None:
    run = small / "run"
    after[FULL_AFTER] = lambda _: fill(small)
    assert main(command(tmp_path, run)) == 2
    said = capfd.readouterr().err
    assert "No space left on device" in said
    assert said.count("  where: ") == said.count("  fix:   ") == 1
    assert "Traceback" not in said
    assert newest_whole(run) == run / "step-00000006"
    assert not (run / "model").exists()
    (small / "filler").unlink()
    after.clear()
    assert main([*command(tmp_path, run), "--resume"]) == 0
    assert "resuming after step 6" in capfd.readouterr().err
    assert figures(Run(run)) == figures(unbroken)
    assert weights(Run(run)) == weights(unbroken)


def test_a_stop_whose_save_cannot_be_written_ends_with_status_2(
    unbroken: Run, small: Path, tmp_path: Path, after: dict, capfd: pytest.CaptureFixture[str]
) -> None:
    run = small / "run"
    after[FULL_AFTER] = lambda _: fill(small)
    after[FREE_AFTER] = lambda _: signal.raise_signal(signal.SIGTERM)
    assert main(command(tmp_path, run)) == 2
    said = capfd.readouterr().err
    assert f"step-{FREE_AFTER:08d}" in said
    assert "stopped at step" not in said, "nothing was saved"
    assert "Traceback" not in said
    assert newest_whole(run) == run / "step-00000006"
    (small / "filler").unlink()
    after.clear()
    assert main([*command(tmp_path, run), "--resume"]) == 0
    assert figures(Run(run)) == figures(unbroken)


def test_a_disk_too_small_for_what_is_kept_is_foretold_and_costs_later_checkpoints_alone(
    unbroken: Run, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    """Nobody fills it but the run: there is room for two checkpoints and the model, and not for a third checkpoint."""
    with small_disk(tmp_path / "disk", 1_450_000) as small:
        finished = pretrain(RECIPE, corpus(), small / "run")
        assert names(small / "run") == ["step-00000002", "step-00000004"]
        assert newest_whole(small / "run") == small / "run" / "step-00000004"
        assert weights(finished) == weights(unbroken)
        assert figures(finished) == figures(unbroken)
    first, *_, last = warnings(said)
    assert first.startswith("warning: disk: ")
    assert " are missing" in first
    assert "step-00000024 was not written: could not write: No space left on device" in last
    assert last.endswith("kept: step-00000002, step-00000004")


TRAIN, DEV = rows(96, 1), rows(40, 2)
FINETUNED = replace(QUICK, epochs=4, log_every=2, save_every=2, dropout=0.2)


@pytest.mark.parametrize("freed", [True, False])
def test_a_fine_tuning_run_keeps_its_best_weights_in_memory_while_the_disk_is_full(
    small: Path, tmp_path: Path, after: dict, said: pytest.LogCaptureFixture, freed: bool
) -> None:
    """The disk is full when each of three epochs ends (6 steps each), and some epoch's weights are the best."""
    model = made_model(tmp_path / "encoder")
    unbroken = bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "run", settings=FINETUNED)
    after[5] = lambda _: fill(small)
    if freed:
        after[23] = lambda _: (small / "filler").unlink()
        found = bertsmith.finetune("classify", model, TRAIN, DEV, small / "run", settings=FINETUNED)
        assert found.scores == unbroken.scores
        assert weights(Run(small / "run")) == weights(Run(tmp_path / "run"))
    else:
        with pytest.raises(BertsmithError, match="No space left"):
            bertsmith.finetune("classify", model, TRAIN, DEV, small / "run", settings=FINETUNED)
        assert newest_whole(small / "run") == small / "run" / "step-00000004"
        assert not (small / "run" / "model").exists()
    refused = [each for each in warnings(said) if "could not be written" in each]
    assert [each.split()[1] for each in refused][:3] == ["step-00000006", "step-00000008", "step-00000010"]


@pytest.mark.parametrize(
    ("trials", "freed_after"),
    [({"seeds": 3}, 60), ({"seeds": 1, "folds": 2, "report": True}, 40)],
    ids=["two seeds", "folds"],
)
def test_what_earlier_trials_left_is_written_when_there_is_space(
    small: Path, tmp_path: Path, after: dict, trials: dict, freed_after: int
) -> None:
    """A seed has 24 steps, a fold 12: the disk is full while trials end, and free while another one trains."""
    model, settings = made_model(tmp_path / "encoder"), replace(FINETUNED, **trials)
    unbroken = bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "run", settings=settings)
    after[5] = lambda _: fill(small)
    after[freed_after] = lambda _: (small / "filler").unlink()
    found = bertsmith.finetune("classify", model, TRAIN, DEV, small / "run", settings=settings)
    assert found.scores == unbroken.scores
    assert weights(Run(small / "run")) == weights(Run(tmp_path / "run"))
    for path in (tmp_path / "run" / "report").rglob("*.jsonl"):
        assert (small / "run" / path.relative_to(tmp_path / "run")).read_bytes() == path.read_bytes()


def no_room(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


BESIDE = replace(FINETUNED, epochs=2, seeds=2, side_by_side=True)


def test_a_last_checkpoint_without_room_costs_no_training_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    model = made_model(tmp_path / "encoder")
    unbroken = bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "unbroken", settings=BESIDE)
    write = saver.write_step

    def refuse_last(run, position, tensors):
        (no_room if position.step == 12 else write)(run, position, tensors)

    monkeypatch.setattr(saver, "write_step", refuse_last)
    found = bertsmith.finetune("classify", model, TRAIN, DEV, tmp_path / "run", settings=BESIDE)
    assert sum("step-00000012 was not written" in each for each in warnings(said)) == 2
    assert found.scores == unbroken.scores
    assert weights(Run(tmp_path / "run")) == weights(Run(tmp_path / "unbroken"))


def test_scores_of_a_fold_without_room_end_the_run_before_its_report_lacks_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, settings = made_model(tmp_path / "encoder"), replace(BESIDE, seeds=1, folds=2, report=True)

    def call() -> FinetuneResult:
        out = tmp_path / "run"
        return bertsmith.finetune("classify", model, TRAIN, DEV, out, settings=settings, resume=out.exists())

    with monkeypatch.context() as patch:
        patch.setattr(np, "save", no_room)
        with pytest.raises(BertsmithError, match="No space left on device"):
            call()
    assert len(call().folds) == 2
    assert (tmp_path / "run" / "report").is_dir()
