"""Curves with a fault are told from curves without one, and each fault by its name, its steps and its instances."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.training.pretraining.health import (
    DIVERGING,
    LEAST_HISTORY,
    MEMORISED,
    PLATEAU,
    SPIKE,
    VISIBLE,
    Health,
)

GUESSING = math.log(30_522) + math.log(2)
EVERY, BATCH = 10, 256
UNIGRAM = 7.0


def lines(losses: Sequence[float], phase: int = 1, **more: float) -> list[dict[str, Any]]:
    """Lines of metrics with these masked-word losses, and 0.6 of the next sentence."""
    return [
        {
            **{"kind": "train", "step": EVERY * number, "phase": phase, "phase_step": EVERY * number},
            **{"steps": float(EVERY), "sequences": float(EVERY * BATCH), "loss": loss + 0.6, "masked_loss": loss},
            **{"masked_accuracy": 0.3, "learning_rate": 1.0 / number, **more},
        }
        for number, loss in enumerate(losses, start=1)
    ]


def evaluation(step: int, loss: float, accuracy: float = 0.05) -> dict[str, Any]:
    beside = {"unigram_loss": UNIGRAM, "most_frequent_accuracy": 0.05}
    return {"kind": "evaluation", "step": step, "masked_loss": loss, "masked_accuracy": accuracy, **beside}


def seen(records: Sequence[dict[str, Any]]) -> list[tuple[int, str, str]]:
    health = Health(GUESSING)
    return [(each["step"], name, text) for each in records for name, text in health.see(each).items()]


def names(records: Sequence[dict[str, Any]]) -> list[tuple[int, str]]:
    return [(step, name) for step, name, _ in seen(records)]


def falling(count: int, noise: float, seed: int = 0) -> list[float]:
    """As BERT's: from guessing by frequency to 1.5."""
    draw = np.random.default_rng(seed)
    return [1.5 + 8 * math.exp(-number / 15) + noise * draw.standard_normal() for number in range(count)]


@given(noise=st.floats(0.001, 0.08), seed=st.integers(0, 2**32), spread=st.floats(0, 0.5))
def test_a_loss_that_falls_with_noise_raises_nothing(noise: float, seed: int, spread: float) -> None:
    records = lines(falling(80, noise, seed))
    # Held-out text is a little more difficult.
    assert not seen([*records, evaluation(800, records[-1]["masked_loss"] + spread, 0.6)])


def test_a_spike_is_named_with_its_steps_and_instances() -> None:
    losses = falling(60, 0.02)
    losses[40] += 1.0
    ((step, name, text),) = seen(lines(losses))
    assert (step, name) == (410, SPIKE)
    assert f"steps 401 to 410 (instances {400 * BATCH:,} to {410 * BATCH - 1:,} of phase 1)" in text
    assert f"--phase 1 --first-instance {400 * BATCH} --samples 16` prints the first 16 of these" in text


def test_a_second_spike_is_named_too_and_a_spike_over_two_lines_once() -> None:
    losses = falling(60, 0.02)
    for place in (40, 41, 55):
        losses[place] += 1.0
    assert names(lines(losses)) == [(410, SPIKE), (560, SPIKE)]


def test_a_loss_that_stays_high_diverges_and_a_phase_that_begins_higher_does_not() -> None:
    low = [2.0 + 0.01 * (number % 3) for number in range(20)]
    high = [each + 3 for each in low]
    assert names(lines([*low, *high])) == [(210, SPIKE), (230, DIVERGING)]
    assert not seen([*lines(low), *lines(high, phase=2)])


def test_a_loss_that_creeps_up_diverges() -> None:
    """Each line is little above those before."""
    creeping = [2.0 + max(0, number - 20) * 0.04 for number in range(60)]
    (spike, diverging) = names(lines(creeping))
    assert (spike[1], diverging[1]) == (SPIKE, DIVERGING)
    assert diverging[0] == spike[0] + 20


def test_a_loss_above_guessing_needs_no_history() -> None:
    assert LEAST_HISTORY > 3
    assert names(lines([7.0, GUESSING + 1, GUESSING + 5, GUESSING + 3])) == [(20, SPIKE), (40, DIVERGING)]


def test_text_is_not_known_by_heart_where_frequencies_alone_are_not() -> None:
    """As in a run that diverges, whose held-out loss is measured after its weights have gone wrong."""
    assert not seen([*lines(flat(UNIGRAM + 0.1, 5)), evaluation(50, UNIGRAM + 4)])
    assert names([*lines(flat(UNIGRAM - 1, 5)), evaluation(50, UNIGRAM + 4)]) == [(50, MEMORISED)]


def flat(at: float, count: int = 30, noise: float = 0.03) -> list[float]:
    return [at + noise * each for each in np.random.default_rng(1).standard_normal(count)]


def long_lines(count: int) -> list[dict[str, Any]]:
    """Of 50 steps each, and flat."""
    return [
        each | {"step": 50 * number, "phase_step": 50 * number, "steps": 50.0}
        for number, each in enumerate(lines(flat(7.0, count)), start=1)
    ]


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([*lines(flat(7.0)), evaluation(300, 7.05)], [(300, PLATEAU)]),
        ([*lines(flat(7.0)), evaluation(300, 7.05), evaluation(300, 7.05)], [(300, PLATEAU)]),
        # Word frequencies are not all that was learned.
        ([*lines(flat(6.5)), evaluation(300, 6.6)], []),
        ([*lines(flat(7.0)), evaluation(300, 7.05, accuracy=0.1)], []),
        # It still falls, or has hardly started, or warms up.
        ([*lines([7.3 - 0.02 * number for number in range(30)]), evaluation(300, 6.95)], []),
        ([*lines(flat(7.0, 29)), evaluation(290, 7.05)], []),
        ([*long_lines(18), evaluation(900, 7.05)], [(900, PLATEAU)]),
        ([*long_lines(17), evaluation(850, 7.05)], []),
        (
            [*(each | {"learning_rate": each["step"] / 1e4} for each in lines(flat(7.0))), evaluation(300, 7.05)],
            [],
        ),
    ],
)
def test_a_plateau_is_a_loss_of_word_frequencies_that_does_not_fall(
    records: list[dict[str, Any]], expected: list[tuple[int, str]]
) -> None:
    assert names(records) == expected


def test_training_far_below_held_out_text_is_named_once() -> None:
    records = [*lines(flat(3.0)), evaluation(300, 4.2, 0.3), evaluation(300, 4.2, 0.3)]
    assert names(records) == [(300, MEMORISED)]
    assert not seen([*lines(flat(3.0)), evaluation(300, 3.7, 0.3)])


def test_words_that_are_all_predicted_right_are_visible() -> None:
    assert names(lines([0.2, 0.2], masked_accuracy=0.95)) == [(10, VISIBLE)]
    assert not seen(lines([1.2, 1.2], masked_accuracy=0.75))


def test_what_was_said_before_a_resume_is_not_said_again() -> None:
    losses = falling(60, 0.02)
    losses[40] += 1.0
    losses[41] += 1.0
    records = lines(losses)
    resumed = Health(GUESSING)
    before = [resumed.see(each) for each in records[:41]]
    assert list(before[-1]) == [SPIKE]
    assert not [found for found in map(resumed.see, records[41:]) if found]
    assert names(records[41:]) == [], "without the lines before it could not tell"
    late = Health(GUESSING)
    late.see({"kind": "warning", "step": 300, "name": MEMORISED, "message": ""})
    assert not [found for found in map(late.see, [*lines(flat(3.0)), evaluation(300, 5.0, 0.3)]) if found]
