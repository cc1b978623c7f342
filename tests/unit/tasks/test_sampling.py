"""Rows of an epoch: a pure function of seed and epoch, in the wanted shares, with every row of a class in turn."""

from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base.streams import generator, stream_key
from bertsmith.tasks.sampling import Sampling, quotas, rows_of_epoch

class_lists = st.lists(st.integers(0, 4), min_size=1, max_size=60).map(lambda each: np.array(each, dtype=np.int64))


@given(class_lists, st.sampled_from(get_args(Sampling)), st.integers(0, 99), st.integers(1, 6))
def test_an_epoch_is_pure_and_has_its_quotas(classes, sampling, seed, epoch):
    rows = rows_of_epoch(len(classes), classes, sampling, seed, epoch)
    assert np.array_equal(rows, rows_of_epoch(len(classes), classes.copy(), sampling, seed, epoch))
    assert len(rows) == len(classes)
    assert np.array_equal(
        np.bincount(classes[rows]),
        quotas(np.bincount(classes), len(classes), sampling)[: len(np.bincount(classes[rows]))],
    )


@given(class_lists, st.sampled_from(["balanced", "sqrt"]), st.integers(0, 99))
def test_over_epochs_no_row_comes_twice_more_than_another_of_its_class(classes, sampling, seed):
    times = np.zeros(len(classes), dtype=np.int64)
    for epoch in range(1, 6):
        rows = rows_of_epoch(len(classes), classes, sampling, seed, epoch)
        times += np.bincount(rows, minlength=len(classes))
        for each in np.unique(classes):
            assert np.ptp(times[classes == each]) <= 1


def test_natural_is_the_permutation_that_it_has_always_been():
    expected = generator(stream_key(7, "finetune", 3, "order")).permutation(20)
    assert np.array_equal(rows_of_epoch(20, None, "natural", 7, 3), expected)
    assert np.array_equal(rows_of_epoch(20, np.arange(20) % 3, "natural", 7, 3), expected)


def test_epochs_and_seeds_differ():
    classes = np.repeat([0, 1], [90, 10])
    first = rows_of_epoch(100, classes, "balanced", 1, 1)
    assert not np.array_equal(first, rows_of_epoch(100, classes, "balanced", 1, 2))
    assert not np.array_equal(first, rows_of_epoch(100, classes, "balanced", 2, 1))
    assert set(classes[first[:20]]) == {0, 1}  # mixed, not one class after the other


@pytest.mark.parametrize(
    ("sampling", "expected"), [("natural", [81, 16, 3]), ("balanced", [34, 33, 33]), ("sqrt", [61, 27, 12])]
)
def test_shares(sampling, expected):
    assert quotas(np.array([81, 16, 3]), 100, sampling).tolist() == expected


def test_a_class_without_rows_gets_none():
    assert quotas(np.array([5, 0, 5]), 10, "balanced").tolist() == [5, 0, 5]
