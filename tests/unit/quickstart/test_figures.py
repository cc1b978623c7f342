"""What the quickstart must show, and its verdicts."""

from __future__ import annotations

import math
import statistics

import pytest

from bertsmith.quickstart.figures import Figure, classifier_figures, pretraining_figures, table

EVALUATION = {
    "masked_accuracy": 0.2,
    "masked_accuracy_alphabetic": 0.15,
    "masked_loss": 4.5,
    "sequence_length": 128,
    "unigram_entropy": 6.5,
    "unigram_loss": 6.0,
    "most_frequent_accuracy": 0.08,
    "most_frequent_alphabetic_accuracy": 0.04,
}


def test_bounds_of_pretraining_are_the_stricter_ones() -> None:
    letters, everything, loss = pretraining_figures(EVALUATION)
    assert (letters.value, letters.bound, letters.reached) == (0.15, pytest.approx(0.08), True)
    assert (everything.value, everything.bound, everything.reached) == (0.2, 0.16, True)
    assert (loss.value, loss.bound, loss.reached) == (4.5, 5.0, True)
    assert pretraining_figures({**EVALUATION, "unigram_entropy": 5.0})[2].bound == 4.0
    digits = {name: value for name, value in EVALUATION.items() if "alphabetic" not in name}
    assert pretraining_figures(digits) == [everything, loss]


@pytest.mark.parametrize(
    ("change", "missed"),
    [
        ({"masked_accuracy_alphabetic": 0.079}, 0),
        ({"masked_accuracy": 0.159}, 1),
        ({"masked_loss": 5.001}, 2),
        ({"masked_loss": math.nan}, 2),
    ],
)
def test_each_bound_can_be_missed_alone(change: dict[str, float], missed: int) -> None:
    figures = pretraining_figures({**EVALUATION, **change})
    assert [not figure.reached for figure in figures] == [number == missed for number in range(3)]


def test_the_bounds_of_pretraining_include_themselves() -> None:
    assert Figure("a", 0.5, 0.5, "").reached
    assert Figure("a", 0.5, 0.5, "", sign="<=").reached


def test_a_classifier_must_be_two_standard_errors_above_its_control() -> None:
    trained, control = [0.80, 0.82, 0.84], [0.70, 0.76, 0.79]
    error = math.sqrt(statistics.variance(trained) / 3 + statistics.variance(control) / 3)
    against, guessing = classifier_figures(trained, control, majority=0.3)
    assert against.value == pytest.approx(0.82)
    assert against.bound == pytest.approx(0.75 + 2 * error)
    assert against.reached
    assert guessing.reached
    assert not classifier_figures([0.76, 0.80], [0.70, 0.78], 0.3)[0].reached
    assert not classifier_figures(trained, control, majority=0.9)[1].reached
    assert not any(each.reached for each in classifier_figures([0.5, 0.5], [0.5, 0.5], majority=0.5))


def test_one_seed_has_no_spread_and_no_error() -> None:
    against, _ = classifier_figures([0.6], [0.5], 0.4)
    assert (against.bound, against.reached) == (0.5, True)


def test_the_table_says_every_verdict() -> None:
    text = table([*pretraining_figures({**EVALUATION, "masked_loss": 5.5}), *classifier_figures([0.6], [0.7], 0.4)])
    lines = text.splitlines()
    assert len(lines) == 7
    assert [("NOT REACHED" in line) for line in lines[2:]] == [False, False, True, True, False]
    assert "15.0%" in lines[2]
    assert ">= 8.0%" in lines[2]
    assert "5.500" in lines[4]
    assert "<= 5.000" in lines[4]


def test_a_record_tells_all_of_a_figure() -> None:
    record = Figure("name", 1.0, 2.0, "because", sign="<=", percent=False).as_record()
    assert record == {
        "name": "name",
        "value": 1.0,
        "bound": 2.0,
        "because": "because",
        "sign": "<=",
        "percent": False,
        "reached": True,
    }
