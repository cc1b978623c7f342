"""A run that was stopped or killed and resumed is, to the bit, the run that was never interrupted, dropout included."""

from __future__ import annotations

import json
import math
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.batches.epochs import Epochs
from bertsmith.batches.order import Order
from bertsmith.recipes.schema import Recipe
from bertsmith.training import loop
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.checkpoints.saver import Saver
from bertsmith.training.loop import Trainer
from bertsmith.training.pretrain import Run, pretrain
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.records import meters
from made_kills import Moment, drawing
from made_runs import corpus, figures, ran, signalled_after, small_corpus, small_recipe, stopped_after, weights

# Some 140 to 190 instances an epoch, by the Python whose documentation they are of: the phase is in its third epoch or
# later at its end, and lines come every three steps, so a stop falls between two.
LENGTH = {"phase1__steps": 14, "phase1__global_batch": 48, "phase2__steps": 5, "micro_batch_tokens": 1024}
RECIPE = small_recipe(**LENGTH, log_every=3, evaluate_every=6)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    order = Order(Epochs(corpus(), seed=RECIPE.seed, phase=1, sequence_length=64))
    assert order.epoch_start(2) < 14 * 48 < order.epoch_start(5)
    assert RECIPE.model.hidden_dropout == RECIPE.model.attention_dropout == 0.1
    return pretrain(RECIPE, corpus(), tmp_path_factory.mktemp("unbroken") / "run")


def test_stopped_in_each_phase_and_resumed_is_unbroken(unbroken: Run, tmp_path: Path) -> None:
    """By either signal."""
    folder, stops, numbers = tmp_path / "run", [], (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    # An early epoch, a later one, the second phase.
    for after, number in ((4, signal.SIGTERM), (10, signal.SIGUSR1), (16, signal.SIGTERM)):
        with pytest.MonkeyPatch.context() as patch:
            signalled_after(after - max(stops, default=0), patch, number)
            with pytest.raises(StoppedAfterSaving):
                pretrain(RECIPE, corpus(), folder, resume=bool(stops))
        stops.append(int(step_folders(folder)[-1].name.removeprefix("step-")))
    assert stops == [4, 10, 16]
    assert not (folder / "model").exists()
    resumed = pretrain(RECIPE, corpus(), folder, resume=True)
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)
    assert [signal.getsignal(number) for number in numbers] == before, "handlers are put back"


def train(recipe: Recipe, source: Path, out: Path) -> None:
    pretrain(recipe, source, out, resume=True)


def test_killed_at_random_moments_and_resumed_is_unbroken(unbroken: Run, tmp_path: Path) -> None:
    """kill -9 in the middle of steps and of saves; every second step is saved."""
    often = small_recipe(**LENGTH, log_every=3, evaluate_every=6, save_every=2)
    folder, draw = tmp_path / "run", drawing()
    for after in (draw.randint(0, 6), draw.randint(7, 12)):
        ran(train, 1, often, small_corpus(), folder, kill=Moment(after, draw.random() * 0.15))
    resumed = pretrain(often, corpus(), folder, resume=True)
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)
    assert not [each.name for each in folder.iterdir() if each.name.startswith(".") and each.name != ".lock"], (
        "nothing half written is left"
    )


@pytest.mark.parametrize("stopped", [False, True])
def test_the_time_of_a_step_leaves_out_evaluations_and_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped: bool
) -> None:
    """Also the evaluation that a stop has ended, which the resumed run does first. By a clock of the test's own."""
    now, signals = [0.0], [signal.SIGTERM] * stopped
    for module in (loop, meters):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: now[0], monotonic=lambda: now[0]))

    def takes(seconds: float, kind: type, name: str) -> None:
        work = getattr(kind, name)

        def timed(*given: Any) -> Any:
            now[0] += seconds
            if kind is Pretraining and signals:
                signal.raise_signal(signals.pop())
            return work(*given)

        monkeypatch.setattr(kind, name, timed)

    takes(1, Trainer, "_advance")
    takes(1000, Pretraining, "evaluate")
    takes(100, Saver, "save")
    recipe = small_recipe(phase1__steps=4, phase2__steps=0, log_every=4, evaluate_every=2, save_every=2)
    if stopped:
        with pytest.raises(StoppedAfterSaving, match="stopped at step 2"):
            pretrain(recipe, corpus(), tmp_path / "run")
    run = pretrain(recipe, corpus(), tmp_path / "run", resume=stopped)
    assert [each["seconds_per_step"] for each in run.metrics("train")] == [1]
    assert now[0] > 3000, "else nothing was to be left out"


def test_resuming_a_finished_run_changes_nothing(unbroken: Run) -> None:
    def written() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in unbroken.folder.rglob("*") if path.name != ".lock"}

    before = written()
    assert pretrain(RECIPE, corpus(), unbroken.folder, resume=True) == unbroken
    assert written() == before


def test_a_finished_run_whose_model_was_not_written_yet_writes_it(unbroken: Run, tmp_path: Path) -> None:
    shutil.copytree(unbroken.folder, tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "model")
    resumed = pretrain(RECIPE, corpus(), tmp_path / "run", resume=True)
    assert weights(resumed) == weights(unbroken)
    assert figures(resumed) == figures(unbroken)


def refused(recipe: Recipe, run: Run) -> BertsmithError:
    with pytest.raises(BertsmithError) as caught:
        pretrain(recipe, corpus(), run.folder, resume=True)
    return caught.value


def test_another_recipe_is_refused_by_the_names_of_its_keys(unbroken: Run) -> None:
    changed = small_recipe(**{**LENGTH, "phase2__steps": 6}, seed=7, masking__rate=0.2, log_every=1)
    error = refused(changed, unbroken)
    for part in ("recipe.phase2.steps was 5, is 6", "recipe.seed was 42, is 7", "recipe.masking.rate was 0.15, is 0.2"):
        assert part in error.what
    assert "log_every" not in error.what
    assert "phase1" not in error.what


def test_a_line_of_metrics_that_lacks_a_figure_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = small_recipe(phase1__steps=3, phase2__steps=0)
    stopped_after(2, monkeypatch, recipe, tmp_path / "run")
    path = tmp_path / "run" / "metrics.jsonl"
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    place, whole = next((place, each) for place, each in enumerate(records) if each["kind"] == "train")
    for lost, value in (
        ("phase", None),
        ("steps", None),
        ("loss", None),
        ("loss", math.nan),
        ("masked_loss", math.inf),
    ):
        records[place] = {name: each for name, each in whole.items() if name != lost}
        if value is not None:
            records[place][lost] = value
        path.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
        with pytest.raises(BertsmithError, match=f"lacks {lost}") as caught:
            pretrain(recipe, corpus(), tmp_path / "run", resume=True)
        assert caught.value.what == f"line {place + 1} (train, step 1) lacks {lost}"
        assert caught.value.where == str(path)


def test_another_corpus_is_refused(unbroken: Run, tmp_path: Path) -> None:
    shutil.copytree(small_corpus(), tmp_path / "corpus")
    account = json.loads((tmp_path / "corpus" / "corpus.json").read_text(encoding="utf-8"))
    (tmp_path / "corpus" / "corpus.json").write_text(json.dumps(account), encoding="utf-8")
    with pytest.raises(BertsmithError, match="corpus was"):
        pretrain(RECIPE, tmp_path / "corpus", unbroken.folder, resume=True)
    assert pretrain(RECIPE, corpus(), unbroken.folder, resume=True) == unbroken
