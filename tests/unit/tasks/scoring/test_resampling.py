"""Bootstrap intervals: what they contain, how often, of which rows; and folds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.tasks.scoring import classes, resampling
from bertsmith.tasks.scoring.classes import class_figures
from bertsmith.tasks.scoring.multilabel import label_figures
from bertsmith.tasks.scoring.numbers import number_figures
from bertsmith.tasks.scoring.resampling import FOLDS, Figures, folds_of, intervals, mean_figures, numbered

stats = pytest.importorskip("scipy.stats")
threadpoolctl = pytest.importorskip("threadpoolctl")  # which scikit-learn needs


@given(st.integers(1, 60), st.integers(2, 30), st.booleans(), st.integers(0, 2**31))
@settings(max_examples=40)
def test_an_interval_contains_the_figure_itself(rows, classes, grouped, seed):
    draw = np.random.default_rng(seed)
    true, predicted = draw.integers(0, classes, (2, rows))
    groups = draw.integers(0, 5, rows) if grouped else None
    names = tuple(map(str, range(classes)))
    numbers = draw.normal(size=(2, rows)).round(1)
    labels = draw.random((2, rows, classes)) < 0.3
    for figures in (
        class_figures(predicted, true, names, positive=0),
        number_figures(*numbers),
        label_figures(*labels, names),
    ):
        found = intervals(figures, rows, groups, resamples=50)
        whole = dict(zip(figures.names, figures.of(np.ones(rows)), strict=True))
        for name, interval in found.items():
            assert interval.value == pytest.approx(whole[name], nan_ok=True)
            assert np.isnan(interval.value) or interval.low <= interval.value <= interval.high


def test_macro_f1_over_many_rare_classes_is_widened_to_contain_itself():
    # A thousand classes of two rows, one of them wrong: resamples without the right row bring the mean down.
    true = np.repeat(np.arange(1000), 2)
    predicted = np.where(np.arange(2000) % 2 == 0, true, 1000)
    figures = class_figures(predicted, true, tuple(map(str, range(1001))))
    found = intervals(figures, 2000)["macro_f1"]
    draws = np.random.default_rng(0)
    elsewhere = [figures.of(np.bincount(draws.integers(0, 2000, 2000), minlength=2000) * 1.0)[1] for _ in range(100)]
    assert max(elsewhere) < found.value == found.high


def test_the_interval_of_a_mean_is_scipys():
    values = np.random.default_rng(3).exponential(size=(400, 1))
    found = intervals(mean_figures(["mean"], values), 400, resamples=4000)["mean"]
    theirs = stats.bootstrap((values[:, 0],), np.mean, n_resamples=4000, method="percentile", rng=5)
    assert found.low == pytest.approx(theirs.confidence_interval.low, abs=0.01)
    assert found.high == pytest.approx(theirs.confidence_interval.high, abs=0.01)


def test_ninety_five_of_a_hundred_intervals_contain_the_truth():
    draw = np.random.default_rng(11)
    hits = 0
    for seed in range(200):
        right = draw.random(200) < 0.8
        found = intervals(mean_figures(["accuracy"], right[:, None]), 200, resamples=400, seed=seed)["accuracy"]
        hits += found.low <= 0.8 <= found.high
    assert 180 <= hits <= 198  # 190 expected, deviation 3.1


def test_groups_that_agree_widen_the_interval_as_if_each_were_one_row():
    right = np.random.default_rng(2).random(60) < 0.7
    each = intervals(mean_figures(["accuracy"], right[:, None]), 60)["accuracy"]
    copies = intervals(mean_figures(["accuracy"], np.repeat(right, 20)[:, None]), 1200, np.repeat(range(60), 20))
    assert copies["accuracy"] == each  # the same draws of the same sixty
    naive = intervals(mean_figures(["accuracy"], np.repeat(right, 20)[:, None]), 1200)["accuracy"]
    assert naive.high - naive.low < (each.high - each.low) / 3


def test_one_seed_gives_one_interval():
    values = np.random.default_rng(3).random((50, 1))
    figures = mean_figures(["mean"], values)
    assert intervals(figures, 50) == intervals(figures, 50)
    assert intervals(figures, 50, seed=1) != intervals(figures, 50)


@pytest.mark.parametrize("groups", [None, [0, 0, 1, 2, 3, 3, 3, 4, 5, 6] * 3])
def test_intervals_do_not_depend_on_how_many_resamples_are_worked_on_at_once(groups, monkeypatch):
    draw = np.random.default_rng(4)
    sides, labels = draw.integers(0, 3, (2, 30)), draw.random((2, 30, 3)) < 0.5
    every = (
        class_figures(*sides, tuple("abc"), positive=1, negative=0),
        number_figures(*draw.random((2, 30))),
        label_figures(*labels, tuple("abc")),
    )
    found = [intervals(figures, 30, groups, resamples=40) for figures in every]
    for most in (1, 100, 700):
        monkeypatch.setattr(resampling, "AT_ONCE", most)
        assert [intervals(figures, 30, groups, resamples=40) for figures in every] == found


def test_labels_that_rows_have_many_of_are_summed_up_one_resample_at_a_time(monkeypatch):
    usual, sizes = classes.sums_at, []

    def seen(places, weights, count):
        sizes.append(weights.size)
        return usual(places, weights, count)

    monkeypatch.setattr(classes, "sums_at", seen)
    labels = np.random.default_rng(4).random((2, 100, 400)) < 0.5
    intervals(label_figures(*labels, tuple(map(str, range(400)))), 100, resamples=8)
    assert max(sizes) < 3 * labels[0].size


def test_a_figure_that_is_undefined_in_resamples_says_how_often():
    def of(weights):  # exists where the first row is there
        return np.where(weights[..., :1] > 0, 1.0, np.nan)

    found = intervals(Figures(("seen",), of), 3, resamples=3000)["seen"]
    assert (found.value, found.low, found.high) == (1, 1, 1)
    assert found.undefined == pytest.approx((2 / 3) ** 3, abs=0.03)


@given(st.integers(0, 50))
def test_folds_are_even_and_cover_all_rows(rows):
    fold = folds_of(rows)
    sizes = np.bincount(fold, minlength=min(rows, FOLDS))
    assert len(fold) == rows
    assert len(sizes) <= FOLDS
    assert rows == 0 or sizes.max() - sizes.min() <= 1


@given(st.lists(st.sampled_from("abcdefg"), min_size=1, max_size=40))
def test_a_group_is_in_one_fold(groups):
    fold = folds_of(len(groups), groups)
    assert all(len({fold[row] for row, other in enumerate(groups) if other == each}) == 1 for each in set(groups))
    assert len(set(fold)) == min(FOLDS, len(set(groups)))
    assert np.array_equal(numbered(groups), numbered([ord(each) for each in groups]))


def test_figures_have_the_same_bits_by_any_number_of_threads():
    draw = np.random.default_rng(0)
    rows = 50_000
    predicted, true = draw.random((2, rows, 3)) < 0.4
    each = [mean_figures(["mean"], draw.random((rows, 1))), label_figures(predicted, true, tuple("abc"))]
    weights = draw.integers(0, 4, rows).astype(np.float64)
    found = []
    for threads in (1, 2):
        with threadpoolctl.threadpool_limits(threads):
            found.append([figures.of(weights).tolist() for figures in each])
    assert found[0] == found[1]
