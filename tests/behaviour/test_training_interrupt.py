"""Ctrl-C saves before it ends a run; pressed again it ends at once; and what is said then is what the user can do."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.batches.epochs import Epochs
from bertsmith.batches.loader import Loader
from bertsmith.batches.maker import Maker
from bertsmith.batches.order import Order
from bertsmith.cli import main
from bertsmith.corpus.shards import Corpus
from bertsmith.recipes.loader import load_recipe
from bertsmith.recipes.schema import Recipe
from bertsmith.training.checkpoints import saver, step_folders
from bertsmith.training.checkpoints.position import read_position
from bertsmith.training.loop import Trainer
from bertsmith.training.pretrain import Run, pretrain
from bertsmith.training.pretraining import objective
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.records.sinks import Outputs
from made_commands import Command, bertsmith
from made_runs import blocks_drawing, corpus, figures, save_recipe, signalled_after, small_corpus, small_recipe, weights

RECIPE = small_recipe(phase1__steps=4, phase2__steps=0)
# Of many micro-batches a step.
LONG = small_recipe(phase1__steps=2, phase1__global_batch=64, phase2__steps=0)


def command(recipe: Recipe, folder: Path, *more: str) -> list[str]:
    save_recipe(recipe, folder / "recipe.yaml")
    call = ["pretrain", str(folder / "recipe.yaml"), "--corpus", str(small_corpus()), "--out", str(folder / "run")]
    return [*call, *more]


def signals_in_micro_batch(patch: pytest.MonkeyPatch, number: int, *signals: int) -> None:
    """Has this process receive these signals while it computes the micro-batch of this number, from 1."""
    forward, taken = Pretraining.forward, iter(range(1, 1000))

    def signalled(*given: Any) -> Any:
        if next(taken) == number:
            for each in signals:
                signal.raise_signal(each)
        return forward(*given)

    patch.setattr(Pretraining, "forward", signalled)


@pytest.fixture
def stops_in_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """The exit status of a run of LONG, and what it said, when these signals came in the middle of its first step."""

    def run(*signals: int) -> tuple[int, str]:
        with monkeypatch.context() as patch:
            signals_in_micro_batch(patch, 3, *signals)
            status = main(command(LONG, tmp_path))
        return status, capfd.readouterr().err

    return run


def interrupted_in_its_sixth_step(*arguments: str) -> int:
    signals_in_micro_batch(pytest.MonkeyPatch(), 11, signal.SIGINT)
    return bertsmith(*arguments)


def test_ctrl_c_saves_and_the_resumed_run_is_unbroken(tmp_path: Path) -> None:
    recipe = small_recipe(phase1__steps=8, phase2__steps=2)
    with Command(*command(recipe, tmp_path), does=interrupted_in_its_sixth_step) as process:
        _, said = process.communicate()
        assert process.wait() == 130, said
    assert "SIGINT received: the unfinished step is dropped, then the run is saved and stops; press Ctrl-C" in said
    (saved,) = step_folders(tmp_path / "run")
    step = int(saved.name.removeprefix("step-"))
    assert 3 <= step < 8
    assert f"stopped at step {step}; run the same command with --resume to resume" in said
    assert "Traceback" not in said
    resumed = pretrain(recipe, corpus(), tmp_path / "run", resume=True)
    unbroken = pretrain(recipe, corpus(), tmp_path / "unbroken")
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


def test_a_signal_in_the_middle_of_a_long_step_drops_it_and_nothing_is_lost(
    tmp_path: Path, stops_in_its_first_step: Callable[..., tuple[int, str]]
) -> None:
    status, said = stops_in_its_first_step(signal.SIGTERM)
    assert status == 143, said
    assert "the unfinished step is dropped" in said
    assert [each.name for each in step_folders(tmp_path / "run")] == ["step-00000000"]
    resumed = pretrain(LONG, corpus(), tmp_path / "run", resume=True)
    unbroken = pretrain(LONG, corpus(), tmp_path / "unbroken")
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


def test_a_save_that_is_being_made_when_a_signal_comes_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large model takes long to write, and a machine that is taken away does not wait for it twice."""
    written: list[int] = []
    write = saver.write_step
    monkeypatch.setattr(saver, "write_step", lambda run, at, state: (written.append(at.step), write(run, at, state)))
    take = Trainer._step

    def taken(trainer: Trainer, *rest: Any) -> Any:
        if trainer.position.step == 1:
            signal.raise_signal(signal.SIGTERM)
        return take(trainer, *rest)

    monkeypatch.setattr(Trainer, "_step", taken)
    with pytest.raises(StoppedAfterSaving, match="stopped at step 1;"):
        pretrain(replace(LONG, save_every=1), corpus(), tmp_path / "run")
    assert written == [1]


@pytest.mark.parametrize("step", [2, 4])
def test_a_signal_in_an_evaluation_ends_it_and_it_is_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Evaluations of a large model take longer than a machine waits before it kills; 4: the last step of the phase."""
    recipe = small_recipe(phase1__steps=4, phase2__steps=0, evaluate_every=2, evaluate_instances=64)
    measured: list[int] = []
    figures_of = objective.held_out_figures

    def counted(*rest: Any) -> Any:
        measured.append(1)
        return figures_of(*rest)

    monkeypatch.setattr(objective, "held_out_figures", counted)
    unbroken = pretrain(recipe, corpus(), tmp_path / "unbroken")
    every, advance = len(measured), Trainer._advance

    def signalled(trainer: Trainer, taken: Any) -> None:
        advance(trainer, taken)
        if trainer.position.step == step:  # the evaluation after it has begun when the signal comes
            monkeypatch.setattr(
                objective, "held_out_figures", lambda *rest: (signal.raise_signal(15), counted(*rest))[1]
            )

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_advance", signalled)
        with pytest.raises(StoppedAfterSaving, match=f"stopped at step {step}"):
            pretrain(recipe, corpus(), tmp_path / "run")
    assert (saved := read_position(step_folders(tmp_path / "run")[-1])).unmeasured
    assert saved.step == step
    monkeypatch.setattr(objective, "held_out_figures", counted)
    resumed = pretrain(recipe, corpus(), tmp_path / "run", resume=True)
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)
    assert every < len(measured) - every < 2 * every, "one batch of the evaluation that the signal ended"


@pytest.mark.parametrize("part", ["fresh weights", "a trained start", "old text before training", "the finished model"])
def test_a_signal_in_a_measurement_before_the_first_step_or_after_the_last_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    recipe = small_recipe(phase1__steps=2, phase2__steps=0, evaluate_instances=64)
    measured: list[int] = []
    signal_at, figures_of = 0, objective.held_out_figures

    def counted(*rest: Any) -> Any:
        measured.append(1)
        if len(measured) == signal_at:
            signal.raise_signal(signal.SIGTERM)
        return figures_of(*rest)

    monkeypatch.setattr(objective, "held_out_figures", counted)
    more: dict[str, Any] = {}
    if part in ("a trained start", "old text before training"):
        more = {"init_from": pretrain(recipe, corpus(), tmp_path / "first").model}
        more["outputs"] = Outputs(also_evaluate=corpus())
    measured.clear()
    unbroken = pretrain(recipe, corpus(), tmp_path / "unbroken", **more)
    # Before training, after the last step, and when finished; on two texts but for the loss of a trained start.
    batches, rest = divmod(len(measured), 7 if more else 3)
    assert batches > 1
    assert not rest
    signal_at = 1 + {"old text before training": batches, "the finished model": 2 * batches}.get(part, 0)
    measured.clear()
    with pytest.raises(StoppedAfterSaving, match="stopped at step") as stopped:
        pretrain(recipe, corpus(), tmp_path / "run", **more)
    assert len(measured) == signal_at, "the batch that the signal came in was the last"
    assert (tmp_path / "run" / "stopped").read_text() == f"{stopped.value}\n"
    after = part == "the finished model"
    assert [each.name for each in step_folders(tmp_path / "run")] == (["step-00000002"] if after else [])
    signal_at = 0
    resumed = pretrain(recipe, corpus(), tmp_path / "run", resume=True, **more)
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)
    assert not (tmp_path / "run" / "stopped").exists()


@pytest.fixture(scope="module")
def over_an_epoch(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An unbroken run that ends in its second epoch."""
    size = Order(Epochs(corpus(), seed=RECIPE.seed, phase=1, sequence_length=64)).epoch(0).size
    recipe = small_recipe(phase1__steps=size // 32 + 2, phase1__global_batch=32, phase2__steps=0)
    return pretrain(recipe, corpus(), tmp_path_factory.mktemp("over-an-epoch") / "run")


@pytest.mark.parametrize(("epoch", "workers"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_signal_ends_the_wait_for_an_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over_an_epoch: Run, epoch: int, workers: int
) -> None:
    """Of the first epoch, which is always drawn while the run waits, and of one that no process makes ahead."""
    made = tmp_path / "corpus"
    shutil.copytree(small_corpus(), made, ignore=shutil.ignore_patterns("order"))
    source, steps = Corpus.open(made), over_an_epoch.metrics("train")[-1]["step"]
    recipe = small_recipe(phase1__steps=steps, phase1__global_batch=32, phase2__steps=0, loader_workers=workers)
    with monkeypatch.context() as patch:
        waits = blocks_drawing(epoch, patch)
        patch.setattr(Maker, "ask_for", lambda self, epoch: None)
        with pytest.raises(StoppedAfterSaving):
            pretrain(recipe, source, tmp_path / "run")
    assert len(waits) == epoch + 1
    saved = read_position(step_folders(tmp_path / "run")[-1])
    assert saved.step == (steps - 2) * epoch, "all steps before the one that needs the index"
    resumed = pretrain(recipe, source, tmp_path / "run", resume=True)
    assert figures(resumed) == figures(over_an_epoch)
    assert weights(resumed) == weights(over_an_epoch)


def test_ctrl_c_twice_stops_at_once(tmp_path: Path, stops_in_its_first_step: Callable[..., tuple[int, str]]) -> None:
    """The second press falls into the micro-batch of the first, after which the run would be saved."""
    status, said = stops_in_its_first_step(signal.SIGINT, signal.SIGINT)
    assert status == 130, said
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


@pytest.mark.parametrize(
    ("at", "verb"),
    [
        *(("torch.nn", verb) for verb in ("predict", "serve", "export", "plan", "bench")),
        *((at, "pretrain") for at in ("tyro", "numpy.matrixlib")),
    ],
)
def test_one_that_comes_while_modules_are_imported_ends_the_command(tmp_path: Path, at: str, verb: str) -> None:
    """Raised while it loads numpy, PyTorch takes it for a numpy that is not installed, and continues with one that
    lacks parts: it waits until PyTorch is there. Where the verbs alone differ, an empty package takes its place."""
    if at == "torch.nn" and verb != "bench":  # which imports what needs more of it, by itself
        (tmp_path / "torch").mkdir()
        (tmp_path / "torch" / "nn.py").touch()
        (tmp_path / "torch" / "__init__.py").write_text("import torch.nn")
    sending = f"""
import atexit, os, sys
left = ["{at}"]
def look(event, given):
    if event == "import" and given[0] in left:
        left.clear()
        os.kill(os.getpid(), 2)
sys.addaudithook(look)
atexit.register(lambda: print("torch" in sys.modules))
"""
    (tmp_path / "sitecustomize.py").write_text(sending)
    calls = {
        "pretrain": command(RECIPE, tmp_path),
        "predict": ["predict", str(tmp_path), "rows.csv"],
        "serve": ["serve", str(tmp_path)],
        "export": ["export", str(tmp_path), "--to", "onnx", "--out", str(tmp_path / "run")],
        "plan": ["plan", "bert-tiny", "--corpus", str(small_corpus()), "--gpu", "cpu"],
        "bench": ["bench", "pretrain-step"],
    }
    found = subprocess.run(
        [sys.executable, "-m", "bertsmith", *calls[verb]],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr.splitlines()[-1]) == (130, "interrupted"), found.stderr
    assert verb == "plan" or found.stderr == "interrupted\n"
    assert found.stdout == f"{at != 'tyro'}\n"
    assert not (tmp_path / "run").exists()
