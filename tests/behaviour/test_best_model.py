"""Promise: of pre-training the last model is kept, and beside it the one with the lowest held-out loss of the last
phase, where that is another; a run that was stopped and resumed keeps the same."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch

from bertsmith.training.checkpoints import step_folders
from bertsmith.training.checkpoints.position import read_position
from bertsmith.training.pretrain import Run, pretrain
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.pretraining.phases import HeldOut
from bertsmith.weights.huggingface import load_pretraining_model
from made_checkpoints import DAMAGES
from made_runs import corpus, figures, small_recipe, stopped_after, weights

# At this rate a model is at its best early, and gets worse from there.
WORSENS = small_recipe(
    phase1__steps=2, phase2__steps=10, phase2__learning_rate=0.5, phase2__schedule="constant", evaluate_every=2
)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return pretrain(WORSENS, corpus(), tmp_path_factory.mktemp("unbroken") / "run")


@pytest.fixture(scope="module")
def stopped_at_9(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that got a signal after step 9."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        stopped_after(9, patch, WORSENS, folder)
    return folder


def measured(run: Run) -> dict[int, float]:
    """Held-out losses of the last phase by step."""
    return {each["step"]: each["masked_loss"] for each in run.metrics("evaluation") if each["phase"] == 2}


def best_weights(run: Run) -> bytes:
    return (run.best / "model.safetensors").read_bytes()


def test_the_best_model_is_kept_beside_the_last(unbroken: Run) -> None:
    losses = measured(unbroken)
    best = min(losses, key=lambda step: losses[step])
    assert best < max(losses) == 12, "else this run shows nothing"
    (end,) = unbroken.metrics("end")
    assert (end["best_step"], end["best_masked_loss"]) == (best, losses[best])
    batches = HeldOut(WORSENS, corpus()).of(WORSENS.phase2.sequence_length)
    for folder, step in ((unbroken.best, best), (unbroken.model, 12)):
        model = load_pretraining_model(folder)
        found = Pretraining(model, torch.device("cpu"), corpus().tokenizer().is_alphabetic).measure(batches)
        assert found.masked_loss == pytest.approx(losses[step], rel=1e-6)


@pytest.mark.parametrize("steps", [3, 5, 11])
def test_a_resumed_run_keeps_the_same(
    steps: int, unbroken: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_after(steps, monkeypatch, WORSENS, tmp_path / "run")
    run = pretrain(WORSENS, corpus(), tmp_path / "run", resume=True)
    assert figures(run) == figures(unbroken)
    assert (best_weights(run), weights(run)) == (best_weights(unbroken), weights(unbroken))


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_best_weights_that_all_checkpoints_refer_to_end_no_run(
    unbroken: Run, stopped_at_9: Path, tmp_path: Path, said: pytest.LogCaptureFixture, damage: str
) -> None:
    """The last model is the same; the best one is that of the evaluations that come."""
    folder = tmp_path / "run"
    shutil.copytree(stopped_at_9, folder)
    (best,) = folder.glob("best-*")
    assert all(read_position(each).best is not None for each in step_folders(folder)), "else this run shows nothing"
    DAMAGES[damage](best / "weights.safetensors")
    run = pretrain(WORSENS, corpus(), folder, resume=True)
    assert f"warning: {best.name} is damaged, so the best weights up to now are lost" in said.text
    assert "resuming after step 9" in said.text
    assert weights(run) == weights(unbroken)
    assert (folder / f"damaged-{best.name}").is_dir()
    later = {step: loss for step, loss in measured(run).items() if step > 9}
    (end,) = run.metrics("end")
    assert (end["best_step"], end["best_masked_loss"]) == min(later.items(), key=lambda each: each[1])


def test_where_the_last_is_the_best_nothing_is_written_twice(tmp_path: Path) -> None:
    """A loss that falls from one evaluation to the next, of a phase whose losses before are not compared with."""
    recipe = small_recipe(phase1__steps=4, phase2__steps=6, phase2__learning_rate=0.02, evaluate_every=2, keep=1)
    run = pretrain(recipe, corpus(), tmp_path / "run")
    losses = measured(run)
    assert min(losses, key=lambda step: losses[step]) == 10, "else this run shows nothing"
    assert not run.best.exists()
    assert "best_step" not in run.metrics("end")[0]
    assert [each.name for each in step_folders(run.folder)] == ["step-00000010"]
    assert not list(run.folder.glob("best-*")), "no checkpoint refers to one"


def test_a_loss_that_is_not_finite_is_no_best_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    losses, evaluate = iter([5.0, math.nan, 6.0, 6.0]), Pretraining.evaluate
    monkeypatch.setattr(Pretraining, "evaluate", lambda *rest: {**evaluate(*rest), "masked_loss": next(losses)})
    recipe = small_recipe(phase1__steps=3, phase2__steps=0, evaluate_every=1)
    (end,) = pretrain(recipe, corpus(), tmp_path / "run").metrics("end")
    assert (end["best_step"], end["best_masked_loss"]) == (1, 5)


def test_best_weights_that_are_lost_cost_no_model(
    unbroken: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: pytest.LogCaptureFixture
) -> None:
    from bertsmith.training.pretraining import phases

    run_phases = phases.run_phases

    def lost(*given: object, **more: object) -> None:
        run_phases(*given, **more)  # type: ignore[arg-type]
        given[2].saver.wait()  # type: ignore[attr-defined]
        for folder in (tmp_path / "run").glob("best-*"):
            (folder / "weights.safetensors").unlink()

    monkeypatch.setattr("bertsmith.training.pretrain.run_phases", lost)
    run = pretrain(WORSENS, corpus(), tmp_path / "run")
    assert weights(run) == weights(unbroken)
    assert not run.best.exists()
    assert "warning: the best model was not written" in said.text
