"""A stage that ends by time: when it ends, what rates it has, and that it can be resumed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.optim.schedules import linear
from bertsmith.training.loop import Trainer
from bertsmith.training.pace import Pace
from bertsmith.training.pretrain import pretrain
from made_runs import corpus, figures, small_recipe, stopped_after, weights

SECONDS_PER_STEP = 0.5


def walked(pace: Pace, seconds: list[float], log_every: int) -> tuple[list[float], float]:
    """Where in the schedule each step stood, and how old the run was at the end. seconds: of each step, in turns."""
    now, step, places = 0.0, 0, []
    pace.begin(now)
    while step < pace.steps:
        places.append((pace.update(step + 1) - 1) / pace.steps)
        now += seconds[step % len(seconds)]
        step += 1
        if step == pace.steps or step % log_every == 0 or pace.looks_after(step):
            pace.look(step, now)
    return places, now


@settings(deadline=None)
@given(st.lists(st.floats(0.01, 2.0), min_size=1, max_size=8), st.integers(1, 50), st.floats(1, 500))
def test_it_ends_at_its_time(seconds: list[float], log_every: int, until: float) -> None:
    places, now = walked(Pace(until), seconds, log_every)
    # Between two lines steps may be slower than those before were.
    assert now - until <= max(log_every, 2) * max(seconds) + 1e-6
    assert until - now <= log_every * max(seconds) + 1e-6
    assert all(0 <= place < 1 for place in places)


@given(st.integers(20, 400), st.integers(1, 10))
def test_of_even_steps_the_rates_are_those_of_so_many_steps(steps: int, log_every: int) -> None:
    pace = Pace(steps * 1.0 + 1e-3)
    places, now = walked(pace, [1.0], log_every)
    assert now == steps
    assert places[0] == 0, "nothing is known yet"
    assert places[1:] == pytest.approx([number / steps for number in range(1, steps)], abs=2 / steps)


@given(st.floats(1.0, 5000.0))
def test_what_the_first_step_waits_for_a_compiler_moves_no_rate(wait: float) -> None:
    """Not even where that is most of the time that there is."""
    pace = Pace(wait + 1000.0)
    pace.begin(0.0)
    pace.look(1, wait)
    assert linear(pace.update(2), steps=pace.steps, warmup_share=0.1, base=1.0) < 0.01
    pace.look(2, wait + 1.0)
    assert pace.steps == pytest.approx(1000, abs=3)
    assert (pace.update(3) - 1) / pace.steps == pytest.approx(2 / 1000, abs=2e-3)


def test_it_ends_after_a_first_step_that_takes_all_of_its_time() -> None:
    pace = Pace(100.0)
    pace.begin(0.0)
    pace.look(1, 100.0)
    assert pace.steps == 1


def test_a_state_is_taken_back() -> None:
    one, other = Pace(10.0), Pace(10.0)
    one.begin(2.0)
    one.look(4, 5.0)
    other.begin(9.0, one.state())
    assert [other.update(number) for number in range(5, 9)] == [one.update(number) for number in range(5, 9)]
    assert other.steps == one.steps


def clocked(patch: pytest.MonkeyPatch) -> None:
    """Every step takes as long as every other, whatever the machine does meanwhile."""
    patch.setattr(Trainer, "_now", lambda self: SECONDS_PER_STEP * self.position.step)


def test_a_run_ends_by_time_and_goes_on_as_it_went(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clocked(monkeypatch)
    hours = 30.5 * SECONDS_PER_STEP / 3600
    recipe = small_recipe(hours=hours, log_every=5, phase1__schedule="linear", phase2__schedule="linear")
    unbroken = pretrain(recipe, corpus(), tmp_path / "unbroken")
    train = unbroken.metrics("train")
    assert train[-1]["step"] == 30
    # 4 steps of 8 x 64 tokens and 3 of 4 x 96.
    first = [record for record in train if record["phase"] == 1]
    assert first[-1]["step"] == int(30.5 * 4 * 8 * 64 / (4 * 8 * 64 + 3 * 4 * 96))
    rate = partial(linear, steps=first[-1]["step"], warmup_share=0.3, base=recipe.phase1.learning_rate)
    assert [record["phase_step"] for record in first][:4] == [1, 2, 4, 5]
    # Not how long the planned steps take: at the first lines these are a million.
    until = hours * 3600 * 4 * 8 * 64 / (4 * 8 * 64 + 3 * 4 * 96)
    for record in first:
        left = max(until - SECONDS_PER_STEP * record["step"], 0)
        assert record["seconds_left_in_phase"] == pytest.approx(left)
    for record in first[2:]:
        assert record["learning_rate"] == pytest.approx(rate(record["phase_step"]), rel=0.2)
    stopped_after(7, monkeypatch, recipe, tmp_path / "run")
    resumed = pretrain(recipe, corpus(), tmp_path / "run", resume=True)
    assert figures(resumed) == figures(unbroken)
    assert weights(resumed) == weights(unbroken)


def test_by_the_real_clock_it_ends_too(tmp_path: Path) -> None:
    run = pretrain(small_recipe(hours=1e-4), corpus(), tmp_path / "run")
    assert run.is_finished()
    assert [record["phase"] for record in run.metrics("train")][-1] == 2


def test_a_rate_that_moves_over_the_steps_needs_their_number() -> None:
    with pytest.raises(BertsmithError, match="whose number hours leaves open"):
        small_recipe(hours=1, masking__final_rate=0.2)
