"""Temperature and calibration error: laws, scipy's minimum, cases worked out by hand, and honest figures."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.tasks.scoring import calibration
from bertsmith.tasks.scoring.calibration import (
    calibrate,
    fitted_temperature,
    probabilities,
    reliability,
    reliability_of_answers,
)

optimize = pytest.importorskip("scipy.optimize")
special = pytest.importorskip("scipy.special")

shapes = st.tuples(st.integers(1, 40), st.integers(2, 6), st.integers(0, 2**31), st.floats(0.01, 30))


def drawn(shape):
    rows, classes, seed, scale = shape
    draw = np.random.default_rng(seed)
    logits = draw.normal(size=(rows, classes)) * scale
    true = np.where(draw.random(rows) < 0.7, logits.argmax(1), draw.integers(0, classes, rows))
    return logits.astype(np.float32), true


def confident(rows=4000, factor=3.0, seed=0):
    """Logits that are `factor` times those which the labels are drawn from: their temperature is `factor`."""
    draw = np.random.default_rng(seed)
    honest = draw.normal(size=(rows, 4)) * 1.5
    true = (honest + draw.gumbel(size=honest.shape)).argmax(1)
    return honest * factor, true


@given(shapes)
def test_a_temperature_never_raises_the_loss_of_its_own_rows(shape):
    logits, true = drawn(shape)
    temperature = fitted_temperature(logits, true)
    assert calibration.LOWEST * 0.999 <= temperature <= calibration.HIGHEST * 1.001
    assert reliability(logits, true, temperature).nll <= reliability(logits, true).nll


@given(shapes)
@settings(max_examples=50)
def test_no_temperature_of_a_fine_grid_is_better(shape):
    logits, true = drawn(shape)
    found = reliability(logits, true, fitted_temperature(logits, true)).nll
    rows = np.arange(len(true))
    for temperature in np.geomspace(calibration.LOWEST, calibration.HIGHEST, 200):
        logs = special.log_softmax(logits.astype(np.float64) / temperature, axis=1)
        assert found <= -logs[rows, true].mean() + 1e-9


@given(shapes, st.floats(0.05, 20))
def test_the_likeliest_class_stays_the_likeliest(shape, temperature):
    logits, _ = drawn(shape)
    p = probabilities(logits, temperature)
    assert p.sum(1) == pytest.approx(1)
    rows = np.arange(len(p))
    assert p[rows, logits.argmax(1)] == pytest.approx(p.max(1), abs=0)


def test_is_scipys_minimum():
    for seed in range(5):
        logits, true = confident(500, factor=0.4 + seed, seed=seed)

        def loss(temperature, logits=logits, true=true):
            return -special.log_softmax(logits / temperature, axis=1)[np.arange(len(true)), true].mean()

        expected = optimize.minimize_scalar(loss, bounds=(0.05, 20), method="bounded", options={"xatol": 1e-9})
        assert fitted_temperature(logits, true) == pytest.approx(expected.x, rel=1e-5)


def test_overconfident_logits_get_their_factor_back():
    logits, true = confident(factor=3.0)
    found = calibrate(logits, true)
    assert found.temperature == pytest.approx(3, rel=0.05)
    assert found.kept
    assert found.cross_fitted
    assert found.before.ece > 0.15
    assert found.after.ece < 0.03
    assert found.after.nll < found.before.nll
    assert "other 4 of 5 folds" in found.remark


def test_after_is_measured_on_rows_that_the_temperature_was_not_fitted_on():
    logits, true = confident(60, factor=1.0, seed=4)
    found = calibrate(logits, true)
    assert found.after.nll > reliability(logits, true, found.fitted).nll


def test_a_temperature_that_helps_no_other_rows_is_not_used():
    # All eight rows right but one: each fold without it wants the lowest temperature, which ruins the one.
    logits = np.tile([[2.0, 0.0]], (8, 1))
    true = np.array([0] * 7 + [1])
    found = calibrate(logits, true)
    assert not found.kept
    assert found.temperature == 1
    assert "not used" in found.remark


def test_rows_of_one_group_cannot_be_cross_fitted():
    logits, true = confident(30)
    found = calibrate(logits, true, ["the same"] * 30)
    assert not found.cross_fitted
    assert not found.kept
    assert found.after.nll <= found.before.nll
    assert "fitted on" in found.remark


def test_a_temperature_at_the_end_of_the_range_is_not_used():
    logits = np.tile([[1.0, 0.0], [0.0, 1.0]], (20, 1))
    for true, end in ((np.tile([0, 1], 20), calibration.LOWEST), (np.tile([1, 0], 20), calibration.HIGHEST)):
        found = calibrate(logits, true)
        assert found.fitted == pytest.approx(end)
        assert found.after.nll < found.before.nll
        assert (found.temperature, found.kept) == (1, False)
        assert "the end of the range that is searched, so it is not used" in found.remark


def test_equal_scores_keep_temperature_one():
    assert fitted_temperature(np.zeros((5, 3)), np.zeros(5, np.int64)) == 1


def test_a_model_that_is_sure_of_every_row_has_no_loss_below_zero():
    logits = np.array([[800.0, 0.0], [0.0, 800.0]])
    sure = reliability(logits, np.array([0, 1])), reliability_of_answers(np.ones(2), np.array([True, True]))
    assert [f"{each.nll:.3f}" for each in sure] == ["0.000", "0.000"]


def test_calibration_error_by_hand():
    # Confidences 0.6, 0.6 and 0.9 with right, wrong, right: bins (0.5, 0.6] and (0.8, 0.9] of ten.
    logits = np.log([[0.6, 0.4], [0.6, 0.4], [0.1, 0.9]])
    found = reliability(logits, np.array([0, 1, 1]), bins=10)
    assert found.ece == pytest.approx((2 * abs(0.5 - 0.6) + abs(1 - 0.9)) / 3)
    assert found.nll == pytest.approx(-(math.log(0.6) + math.log(0.4) + math.log(0.9)) / 3)
    full = [each for each in found.bins if each.rows]
    assert [each.rows for each in full] == [2, 1]
    assert [each.accuracy for each in full] == pytest.approx([0.5, 1])
    assert [each.confidence for each in full] == pytest.approx([0.6, 0.9])
    assert all(each.low < each.confidence <= each.high + 1e-12 for each in full)


@given(shapes)
def test_calibration_error_is_that_of_its_definition(shape):
    logits, true = drawn(shape)
    p = special.softmax(logits.astype(np.float64), axis=1)
    confidence, right = p.max(1), p.argmax(1) == true
    total = 0.0
    for low in range(15):
        inside = (confidence > low / 15) & (confidence <= (low + 1) / 15)
        if inside.any():
            total += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    found = reliability(logits, true)
    assert sum(each.rows for each in found.bins) == len(true)
    # A confidence on the very edge of two bins may round into either.
    edges = np.abs(confidence * 15 - np.round(confidence * 15)).min() < 1e-9
    assert edges or found.ece == pytest.approx(total)


def test_single_decisions_are_problems_of_two_classes():
    z = np.array([[0.3, -2.0], [5.0, 0.0]])
    assert probabilities(calibration.as_two_classes(z))[:, 1] == pytest.approx(special.expit(z).ravel())


@given(shapes)
def test_the_reliability_of_answers_is_that_of_the_likeliest_class(shape):
    """What they were right of is another loss: whether they are, by their own probability."""
    logits, true = drawn(shape)
    p, right = probabilities(logits).max(1), logits.argmax(1) == true
    found, of_classes = reliability_of_answers(p, right), reliability(logits, true)
    assert [(each.rows, each.confidence, each.accuracy) for each in found.bins] == [
        (each.rows, each.confidence, each.accuracy) for each in of_classes.bins
    ]
    assert found.ece == pytest.approx(of_classes.ece)
    with np.errstate(divide="ignore"):
        each = -np.log(np.where(right, p, 1 - p))
    assert found.nll == pytest.approx(np.minimum(each, -np.log(1e-12)).mean())
