"""Metrics against scikit-learn and scipy."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.tasks.scoring import classes as metrics
from bertsmith.tasks.scoring import numbers as regression

sklearn = pytest.importorskip("sklearn.metrics")
stats = pytest.importorskip("scipy.stats")

labels = st.integers(2, 5).flatmap(
    lambda classes: st.lists(st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1)), min_size=1)
)
numbers = st.lists(st.tuples(st.integers(-9, 9), st.floats(-100, 100).map(lambda x: round(x, 2))), min_size=3)


def sides(pairs, dtype):
    return np.array([a for a, _ in pairs], dtype=dtype), np.array([b for _, b in pairs], dtype=dtype)


@given(labels)
def test_class_metrics_equal_scikit_learn(pairs):
    predicted, true = sides(pairs, np.int64)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert metrics.accuracy(predicted, true) == pytest.approx(sklearn.accuracy_score(true, predicted))
        assert metrics.macro_f1(predicted, true) == pytest.approx(sklearn.f1_score(true, predicted, average="macro"))
        assert metrics.matthews(predicted, true) == pytest.approx(sklearn.matthews_corrcoef(true, predicted), abs=1e-9)


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1))
def test_binary_f1_equals_scikit_learn(pairs):
    predicted, true = sides(pairs, np.int64)
    expected = sklearn.f1_score(true, predicted, pos_label=1, zero_division=0, labels=[0, 1])
    assert metrics.binary_f1(predicted, true) == pytest.approx(expected)


@given(labels, st.integers(0, 4))
def test_micro_f1_equals_scikit_learn_over_the_positive_classes(pairs, negative):
    predicted, true = sides(pairs, np.int64)
    positive = [each for each in range(5) if each != negative]
    expected = sklearn.f1_score(true, predicted, labels=positive, average="micro", zero_division=0)
    assert metrics.micro_f1(predicted, true, negative) == pytest.approx(expected)


@given(numbers)
def test_correlations_equal_scipy(pairs):
    x, y = sides(pairs, np.float64)
    if len(set(x)) > 1 and len(set(y)) > 1:
        assert regression.pearson(x, y) == pytest.approx(stats.pearsonr(x, y)[0], abs=1e-9)
        assert regression.spearman(x, y) == pytest.approx(stats.spearmanr(x, y)[0], abs=1e-9)
        assert regression.r2(x, y) == pytest.approx(sklearn.r2_score(y, x), abs=1e-9)
        assert regression.rmse(x, y) == pytest.approx(sklearn.root_mean_squared_error(y, x), abs=1e-9)
        assert regression.mae(x, y) == pytest.approx(sklearn.mean_absolute_error(y, x), abs=1e-9)


def test_a_constant_side_correlates_with_nothing():
    assert regression.pearson(np.ones(4), np.arange(4.0)) == 0
    assert metrics.matthews(np.zeros(4, np.int64), np.array([0, 1, 0, 1])) == 0
