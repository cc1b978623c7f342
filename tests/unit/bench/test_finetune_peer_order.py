"""The batches of the peer: a grouped order is only spread, and its padding is counted as it is padded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.bench.finetune.peer import padding_share, spread


def batches_of(order, size):
    return [tuple(order[start : start + size]) for start in range(0, len(order), size)]


@given(st.integers(1, 60), st.integers(1, 9))
def test_spreading_keeps_every_batch_and_leaves_the_small_one_last(count, size):
    order = np.random.default_rng(count).permutation(count).tolist()
    found = batches_of(spread(order, size), size)
    assert sorted(found) == sorted(batches_of(order, size))
    assert all(len(each) == size for each in found[:-1])


@given(st.integers(8, 40), st.integers(0, 20))
def test_any_steps_in_a_row_are_a_fair_sample(batches, start):
    """Of a falling order, eight steps in a row have nearly the mean; in the order itself the first eight have not."""
    order = spread(list(range(batches)), 1)
    some = [order[(start + step) % batches] for step in range(8)]
    assert abs(np.mean(some) - (batches - 1) / 2) <= 0.2 * batches


def test_padding_is_what_the_longest_row_of_each_batch_adds():
    assert padding_share([4, 2, 6, 6, 1], [0, 1, 2, 3, 4], 2) == pytest.approx(1 - 19 / (2 * 4 + 2 * 6 + 1))
    assert padding_share([5, 5, 5], [2, 0, 1], 2) == 0
