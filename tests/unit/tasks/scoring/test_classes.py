"""Metrics of classes, confusion matrices, per-class tables and multi-label metrics against scikit-learn."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.tasks.scoring import classes as class_scores
from bertsmith.tasks.scoring import multilabel

sklearn = pytest.importorskip("sklearn.metrics")

sides = st.integers(2, 6).flatmap(
    lambda classes: st.tuples(
        st.just(classes),
        st.lists(st.tuples(st.integers(0, classes - 1), st.integers(0, classes - 1)), min_size=1, max_size=40),
    )
)
# From two labels on: a single column is a single-label problem to scikit-learn.
label_sides = st.tuples(st.integers(1, 25), st.integers(2, 5), st.integers(0, 2**31)).map(
    lambda shape: np.random.default_rng(shape[2]).random((2, *shape[:2])) < 0.4
)


def columns(pairs):
    predicted, true = np.array(pairs, dtype=np.int64).T
    return predicted, true


@given(sides)
def test_the_matrix_and_the_table_equal_scikit_learn(drawn):
    classes, pairs = drawn
    predicted, true = columns(pairs)
    found = class_scores.confusion(predicted, true, classes)
    theirs = sklearn.confusion_matrix(true, predicted, labels=range(classes))
    assert np.array_equal(found.among(range(classes)), theirs)
    some = range(1, classes, 2)
    assert np.array_equal(found.among(some), theirs[np.ix_(some, some)])
    assert len(found.counts) == np.count_nonzero(theirs)
    table = found.table()
    expected = sklearn.precision_recall_fscore_support(true, predicted, labels=range(classes), zero_division=0)
    for ours, theirs in zip((table.precision, table.recall, table.f1, table.support), expected, strict=True):
        assert ours == pytest.approx(theirs)
    assert table.predicted.sum() == table.support.sum() == len(pairs)


def test_the_table_of_many_classes_takes_memory_for_the_pairs_that_occur():
    """A matrix of all pairs of so many would be of 8 TB."""
    classes = 1_000_000
    found = class_scores.confusion(np.array([7, 7, 999_999]), np.array([7, 3, 999_999]), classes)
    assert (found.true.tolist(), found.predicted.tolist(), found.counts.tolist()) == (
        [3, 7, 999_999],
        [7, 7, 999_999],
        [1] * 3,
    )
    assert found.table().f1[[3, 7, 999_999]] == pytest.approx([0, 2 / 3, 1])
    assert found.among([3, 7]).tolist() == [[0, 1], [0, 1]]


@given(sides)
def test_figures_equal_scikit_learn(drawn):
    classes, pairs = drawn
    predicted, true = columns(pairs)
    names = tuple(f"class {number}" for number in range(classes))
    figures = class_scores.class_figures(predicted, true, names, positive=1, negative=0)
    found = dict(zip(figures.names, figures.of(np.ones(len(true))), strict=True))
    assert class_scores.class_metrics(predicted, true, classes, positive=1, negative=0) == {
        name: value for name, value in found.items() if name.endswith(("f1", "accuracy", "matthews"))
    }
    assert found["accuracy"] == class_scores.accuracy(predicted, true)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert found["accuracy"] == pytest.approx(sklearn.accuracy_score(true, predicted))
        assert found["macro_f1"] == pytest.approx(sklearn.f1_score(true, predicted, average="macro"))
        assert found["matthews"] == pytest.approx(sklearn.matthews_corrcoef(true, predicted), abs=1e-9)
        each = sklearn.f1_score(true, predicted, labels=range(classes), average=None, zero_division=np.nan)
    assert [found[f"f1 of {name}"] for name in names] == pytest.approx(list(each), nan_ok=True)
    assert found["binary_f1"] == pytest.approx(np.nan_to_num(each)[1])
    others = range(1, classes)
    over_others = sklearn.f1_score(true, predicted, labels=others, average="micro", zero_division=0)
    assert found["micro_f1"] == pytest.approx(over_others)


def test_a_constant_side_correlates_with_nothing():
    assert class_scores.class_metrics(np.zeros(4, np.int64), np.array([0, 1, 0, 1]), 2)["matthews"] == 0


@given(sides, st.integers(0, 2**31))
def test_a_weight_is_how_often_a_row_is_there(drawn, seed):
    classes, pairs = drawn
    predicted, true = columns(pairs)
    times = np.random.default_rng(seed).integers(0, 4, len(pairs))
    times[0] += 1
    names = tuple(map(str, range(classes)))
    weighted = class_scores.class_figures(predicted, true, names).of(times.astype(np.float64))
    repeated = class_scores.class_figures(np.repeat(predicted, times), np.repeat(true, times), names)
    assert weighted == pytest.approx(repeated.of(np.ones(times.sum())), nan_ok=True)


@given(label_sides)
def test_multi_label_metrics_equal_scikit_learn(drawn):
    predicted, true = drawn
    found = multilabel.label_metrics(predicted, true)
    assert found["micro_f1"] == pytest.approx(sklearn.f1_score(true, predicted, average="micro", zero_division=0))
    assert found["micro_precision"] == pytest.approx(
        sklearn.precision_score(true, predicted, average="micro", zero_division=0)
    )
    assert found["micro_recall"] == pytest.approx(
        sklearn.recall_score(true, predicted, average="micro", zero_division=0)
    )
    assert found["subset_accuracy"] == pytest.approx(np.mean((true == predicted).all(1)))
    assert found["hamming_loss"] == pytest.approx(sklearn.hamming_loss(true, predicted))
    each = np.array([sklearn.f1_score(t, p, zero_division=np.nan) for t, p in zip(true.T, predicted.T, strict=True)])
    here = ~np.isnan(each)
    assert found["macro_f1"] == pytest.approx(each[here].mean() if here.any() else 0.0)
    table = multilabel.label_table(predicted, true)
    expected = sklearn.precision_recall_fscore_support(true, predicted, average=None, zero_division=0)
    for ours, theirs in zip((table.precision, table.recall, table.f1, table.support), expected, strict=True):
        assert ours == pytest.approx(theirs)


@given(label_sides, st.integers(0, 2**31))
def test_weights_of_multi_label_rows_are_repetitions(drawn, seed):
    predicted, true = drawn
    times = np.random.default_rng(seed).integers(0, 4, len(true))
    times[0] += 1
    names = tuple(map(str, range(true.shape[1])))
    weighted = multilabel.label_figures(predicted, true, names).of(times.astype(np.float64))
    again = multilabel.label_figures(np.repeat(predicted, times, axis=0), np.repeat(true, times, axis=0), names)
    assert weighted == pytest.approx(again.of(np.ones(times.sum())), nan_ok=True)


def test_counts_of_several_in_a_row():
    # Two sentences with entities of two types: 1 of 2 right and 0 of 1, then 1 of 1 right and one too many.
    right, predicted, true = (np.array(each) for each in ([[1, 0], [1, 0]], [[2, 0], [1, 1]], [[2, 1], [1, 0]]))
    figures = class_scores.count_figures(right, predicted, true, ("PER", "LOC"))
    found = dict(zip(figures.names, figures.of(np.ones(2)), strict=True))
    assert found["micro_precision"] == found["micro_recall"] == found["micro_f1"] == 0.5
    assert (found["f1 of PER"], found["f1 of LOC"]) == (pytest.approx(2 / 3), 0)
    assert found["macro_f1"] == pytest.approx(1 / 3)


def test_a_single_label_and_none_at_all():
    predicted, true = np.array([[1], [1], [0], [0]], dtype=bool), np.array([[1], [0], [1], [0]], dtype=bool)
    found = multilabel.label_metrics(predicted, true)
    assert set(found) == set(multilabel.METRICS)
    assert set(found.values()) == {0.5}
    nothing = np.zeros((3, 2), dtype=bool)
    found = multilabel.label_metrics(nothing, nothing)
    assert found.pop("subset_accuracy") == 1
    assert set(found.values()) == {0}


def test_a_table_as_json():
    predicted, true = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])
    rows = class_scores.confusion(predicted, true, 3).table().rows(["a", "b", "c"])
    assert rows[1] == {"label": "b", "precision": 1.0, "recall": 2 / 3, "f1": 0.8, "support": 3, "predicted": 2}
    assert rows[2] == {"label": "c", "precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0, "predicted": 0}
