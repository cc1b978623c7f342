"""Promise: a run that is driven by time and killed continues from its checkpoint as if the kill had not been: the steps
up to the next line have the rates that they had, and the schedule is as far as the time that counts."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertsmith.training import loop
from bertsmith.training.checkpoints import step_folders
from bertsmith.training.checkpoints.position import read_position
from bertsmith.training.loop import Trainer
from bertsmith.training.objective import Step
from bertsmith.training.pretrain import pretrain
from bertsmith.training.run_folder import Run
from made_kills import Moment, drawing
from made_runs import ran, small_corpus, small_recipe

SECONDS, SECONDS_PER_STEP, LOG_EVERY, SAVE_EVERY = 1.6, 0.02, 3, 12
RECIPE = small_recipe(
    hours=SECONDS / 3600,
    phase1__warmup=0.0,
    phase1__schedule="linear",
    phase2__steps=0,
    log_every=LOG_EVERY,
    save_every=SAVE_EVERY,
    keep=1000,
)


def every_step_takes_as_long(start: float, patch: pytest.MonkeyPatch) -> None:
    """Whatever the machine does meanwhile. start: of the clock, which each process has its own."""
    taken, advance = 0, Trainer._advance

    def advanced(trainer: Trainer, step: Step) -> None:
        nonlocal taken
        taken += 1
        advance(trainer, step)

    patch.setattr(Trainer, "_advance", advanced)
    clock = SimpleNamespace(monotonic=lambda: start + SECONDS_PER_STEP * taken, perf_counter=time.perf_counter)
    patch.setattr(loop, "time", clock)


def train(source: Path, folder: Path) -> None:
    every_step_takes_as_long(5.0, pytest.MonkeyPatch())
    pretrain(RECIPE, source, folder)


@pytest.mark.skipif(sys.platform == "win32", reason="kills with SIGKILL")
def test_a_kill_between_two_saves_moves_no_rate_and_no_time(
    tmp_path: Path, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, draw = Run(tmp_path / "run"), drawing()
    saved_step = SAVE_EVERY * draw.randint(1, 3)
    # The last step that the process takes, with at least one line since the save.
    killed_after = saved_step + draw.randint(LOG_EVERY + 1, SAVE_EVERY - 1)
    ran(train, 1, small_corpus(), run.folder, kill=Moment(killed_after, 0.0, saved=True))
    before, saved = run.metrics("train"), read_position(step_folders(run.folder)[-1])
    assert saved.step == saved_step
    lost = [record for record in before if record["step"] > saved.step]
    assert lost
    said.clear()
    every_step_takes_as_long(900.0, monkeypatch)
    pretrain(RECIPE, small_corpus(), run.folder, resume=True)
    dropped = f"the records of the steps after {saved.step}, up to {lost[-1]['step']}, are dropped"
    assert len([each for each in said.messages if each.startswith(dropped)]) == 1

    after = run.metrics("train")
    steps = [record["step"] for record in after]
    assert steps == sorted(set(steps)), "no step has two rates"
    kept = [record for record in before if record["step"] <= saved.step]
    assert after[: len(kept)] == kept
    assert after[len(kept)]["step"] == lost[0]["step"]
    assert after[len(kept)]["learning_rate"] == lost[0]["learning_rate"], "what was planned at the save holds"
    # The schedule is a straight line, so a rate says how far it is: nowhere behind the save.
    base, (*_, progress, _) = RECIPE.phase1.learning_rate, saved.pace
    assert all(record["learning_rate"] <= base * (1 - progress) * 1.01 for record in after[len(kept) :])
    later = [position for each in step_folders(run.folder) if (position := read_position(each)).step > saved.step]
    for position in later:
        assert position.seconds == pytest.approx(SECONDS_PER_STEP * position.step), (
            "what the kill has lost is not counted"
        )
        assert position.pace[4] == pytest.approx(
            position.seconds / SECONDS, abs=2 * LOG_EVERY * SECONDS_PER_STEP / SECONDS
        )
    assert later[-1].step == after[-1]["step"] == pytest.approx(SECONDS / SECONDS_PER_STEP, abs=LOG_EVERY)
