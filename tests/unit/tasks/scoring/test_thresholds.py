"""Thresholds against every threshold there is, ties, rare labels, and honest figures by cross-fitting."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.tasks.scoring.thresholds import best_threshold, best_thresholds, cross_fitted

sklearn = pytest.importorskip("sklearn.metrics")

# Few different values, so that there are ties.
rows = st.lists(st.tuples(st.integers(0, 12).map(lambda x: x / 12), st.booleans()), min_size=1, max_size=30)


def sides(drawn):
    return np.array([p for p, _ in drawn], dtype=np.float64), np.array([t for _, t in drawn], dtype=bool)


@given(rows)
def test_no_threshold_has_a_higher_f1(drawn):
    p, true = sides(drawn)
    found = best_threshold(p, true, least=1)
    own = sklearn.f1_score(true, p >= found.value, zero_division=0)
    assert found.f1 == pytest.approx(own)
    assert found.f1_at_half == pytest.approx(sklearn.f1_score(true, p >= 0.5, zero_division=0))
    if found.tuned:
        every = [*np.unique(p), *(np.unique(p) + 1e-6), 0.0, 0.5]
        given_one = [p >= each for each in every]
        assert found.f1 >= max(2 * (each & true).sum() / (each.sum() + true.sum()) for each in given_one) - 1e-12
    else:
        assert found.value == 0.5
        assert not true.any() or true.all()


@given(rows)
def test_of_equal_thresholds_the_one_nearest_to_a_half_is_taken(drawn):
    p, true = sides(drawn)
    found = best_threshold(p, true, least=1)
    if found.f1 == found.f1_at_half:
        assert found.value == 0.5
    assert 0 <= found.value <= 1


def test_of_two_thresholds_as_near_to_a_half_the_lower_one_is_taken():
    # One of the first one, and two of the first four, are right: an F1 of 2/3 with both.
    p, true = np.array([0.875, 0.625, 0.5, 0.375, 0.125]), np.array([True, False, False, True, False])
    found = best_threshold(p, true, least=1)
    assert (found.value, found.f1) == (0.25, pytest.approx(2 / 3))


def test_a_gap_is_parted_in_its_middle():
    p = np.array([0.1, 0.2, 0.3, 0.4, 0.45])
    found = best_threshold(p, np.array([False, False, True, True, True]), least=3)
    assert found.value == pytest.approx(0.25)
    assert (found.f1, found.positives, found.tuned) == (1, 3, True)


@pytest.mark.parametrize("low", [0.3, np.nextafter(0.3, 1)])  # of one pair the mean is rounded down, of the other up
def test_neighbouring_numbers_are_parted(low):
    high = np.nextafter(low, 1)
    found = best_threshold(np.array([low, high]), np.array([False, True]), least=1)
    assert low < found.value <= high


def test_rare_labels_keep_a_half():
    p, true = np.full((20, 3), 0.2), np.zeros((20, 3), dtype=bool)
    true[:4, 0] = True  # one too few
    true[:, 1] = True  # no row without it
    true[:5, 2] = True
    p[:5, 2] = 0.3
    found = best_thresholds(p, true)
    assert [each.tuned for each in found] == [False, False, True]
    assert [each.value for each in found] == [0.5, 0.5, 0.25]
    assert [each.positives for each in found] == [4, 20, 5]


def test_cross_fitting_tunes_on_other_rows():
    draw = np.random.default_rng(0)
    p, true = draw.random((200, 2)), draw.random((200, 2)) < 0.1  # nothing to be found
    fold = np.arange(200) % 5
    decided = cross_fitted(p, true, fold)
    for number in range(5):
        inside = fold == number
        expected = [each.value for each in best_thresholds(p[~inside], true[~inside])]
        assert np.array_equal(decided[inside], p[inside] >= expected)
    honest = sklearn.f1_score(true[:, 0], decided[:, 0])
    assert honest < best_threshold(p[:, 0], true[:, 0]).f1


def test_one_fold_alone_keeps_a_half():
    p, true = np.full((6, 1), 0.4), np.ones((6, 1), dtype=bool)
    assert not cross_fitted(p, true, np.zeros(6, np.int64)).any()


def test_at_the_threshold_of_the_other_rows_a_label_is_given():
    assert cross_fitted(np.full((4, 1), 0.5), np.ones((4, 1), dtype=bool), np.arange(4) % 2).all()
