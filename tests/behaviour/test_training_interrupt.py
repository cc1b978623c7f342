"""Ctrl-C saves before it ends a run; pressed again it ends at once; and what is said then is what the user can do."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.batches.loader import Loader
from bertsmith.recipes.loader import load_recipe, save_recipe
from bertsmith.recipes.schema import Recipe
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.checkpoints.position import read_position
from bertsmith.training.loop import Trainer
from bertsmith.training.pretrain import pretrain
from bertsmith.training.pretraining import evaluate
from made_runs import corpus, figures, signalled_after, small_corpus, small_recipe, weights

RECIPE = small_recipe(phase1__steps=24, phase2__steps=2, phase1__global_batch=48, evaluate_every=1000)


def command(recipe: Recipe, folder: Path, *more: str) -> list[str]:
    save_recipe(recipe, folder / "recipe.yaml")
    call = ["pretrain", str(folder / "recipe.yaml"), "--corpus", str(small_corpus()), "--out", str(folder / "run")]
    return [sys.executable, "-m", "bertsmith", *call, *more]


def started(call: list[str], run: Path, after_step: int) -> subprocess.Popen[str]:
    """The process, once its metrics tell of this step."""
    process = subprocess.Popen(call, stderr=subprocess.PIPE, text=True)
    path, end = run / "metrics.jsonl", time.monotonic() + 90
    while time.monotonic() < end and process.poll() is None:
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        if any(json.loads(line)["step"] >= after_step for line in lines if line.endswith("}")):
            return process
        time.sleep(0.001)
    process.kill()
    raise AssertionError(process.communicate()[1])


def test_ctrl_c_saves_and_the_resumed_run_is_unbroken(tmp_path: Path) -> None:
    process = started(command(RECIPE, tmp_path), tmp_path / "run", after_step=3)
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    assert "SIGINT received: the unfinished step is dropped, then the run is saved and stops; press Ctrl-C" in said
    (saved,) = step_folders(tmp_path / "run")
    step = int(saved.name.removeprefix("step-"))
    assert 3 <= step < 24
    assert f"stopped at step {step}; run the same command with --resume to resume" in said
    assert "Traceback" not in said
    resumed = pretrain(RECIPE, corpus(), tmp_path / "run", resume=True)
    unbroken = pretrain(RECIPE, corpus(), tmp_path / "unbroken")
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


def test_a_signal_in_the_middle_of_a_long_step_drops_it_and_nothing_is_lost(tmp_path: Path) -> None:
    long = small_recipe(phase1__steps=2, phase1__global_batch=1000, phase2__steps=0)
    process = started(command(long, tmp_path), tmp_path / "run", after_step=0)
    time.sleep(0.3)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 143, said
    assert "the unfinished step is dropped" in said
    assert step_folders(tmp_path / "run")
    resumed = pretrain(long, corpus(), tmp_path / "run", resume=True)
    unbroken = pretrain(long, corpus(), tmp_path / "unbroken")
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


@pytest.mark.parametrize("step", [2, 4])
def test_a_signal_in_an_evaluation_ends_it_and_it_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Evaluations of a large model take longer than a machine waits before it kills; 4: the last step of the phase."""
    recipe = small_recipe(phase1__steps=4, phase2__steps=0, evaluate_every=2, evaluate_instances=64)
    measured: list[int] = []
    figures_of = evaluate.held_out_figures

    def counted(*rest: Any) -> Any:
        measured.append(1)
        return figures_of(*rest)

    monkeypatch.setattr(evaluate, "held_out_figures", counted)
    unbroken = pretrain(recipe, corpus(), tmp_path / "unbroken")
    every, advance = len(measured), Trainer._advance

    def signalled(trainer: Trainer, taken: Any) -> None:
        advance(trainer, taken)
        if trainer.position.step == step:  # the evaluation after it has begun when the signal comes
            monkeypatch.setattr(
                evaluate, "held_out_figures", lambda *rest: (signal.raise_signal(15), counted(*rest))[1]
            )

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_advance", signalled)
        with pytest.raises(StoppedAfterSaving, match=f"stopped at step {step}"):
            pretrain(recipe, corpus(), tmp_path / "run")
    assert (saved := read_position(step_folders(tmp_path / "run")[-1])).unmeasured
    assert saved.step == step
    monkeypatch.setattr(evaluate, "held_out_figures", counted)
    resumed = pretrain(recipe, corpus(), tmp_path / "run", resume=True)
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)
    assert every < len(measured) - every < 2 * every, "one batch of the evaluation that the signal ended"


def test_ctrl_c_twice_stops_at_once(tmp_path: Path) -> None:
    """A micro-batch of many sequences is long enough that the second press falls into it."""
    long = small_recipe(phase1__steps=3, phase1__global_batch=6000, model__layers=4, micro_batch_tokens=10**6)
    call = command(long, tmp_path)
    process = started(call, tmp_path / "run", after_step=0)
    for _ in range(2):
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 130, said
    assert "then the run is saved and stops" in said
    assert "interrupted" in said
    assert "Traceback" not in said
    assert step_folders(tmp_path / "run") == []


def test_what_to_do_next_fits_how_the_run_was_called(tmp_path: Path) -> None:
    """A run that was called to resume, as the quickstart's always is, goes on by the same call."""
    with pytest.MonkeyPatch.context() as patch:
        signalled_after(0, patch)
        for resume, words in ((False, "with --resume to resume"), (True, "run the same command again to resume")):
            with pytest.raises(StoppedAfterSaving, match=words) as caught:
                pretrain(RECIPE, corpus(), tmp_path / "run", resume=resume)
            assert caught.value.status == 143


def test_the_quickstart_loses_few_steps_to_a_kill() -> None:
    assert load_recipe("quickstart").save_every == 250


def test_a_stopped_run_is_marked_as_soon_as_it_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What builds batches ahead may take a while to end."""
    close, marked = Loader.close, []
    monkeypatch.setattr(
        Loader, "close", lambda self: (marked.append((tmp_path / "run" / "stopped").exists()), close(self))
    )
    signalled_after(2, monkeypatch)
    with pytest.raises(StoppedAfterSaving) as stopped:
        pretrain(RECIPE, corpus(), tmp_path / "run")
    assert marked == [True]
    assert (tmp_path / "run" / "stopped").read_text() == f"{stopped.value}\n"
