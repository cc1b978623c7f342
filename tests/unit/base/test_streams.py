"""Random streams: the same on every machine, independent of one another, and even."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base.streams import below, bits, generator, mix, stream_key, uniform

counters = np.arange(200_000, dtype=np.uint64)


def test_known_values_never_change():
    """A checkpoint of last year resumes the same order and masks only while these stay."""
    assert stream_key(42, "phase1", 0, "pairs", 3) == 0x148633E1D9F4CDB4
    assert bits(7, np.arange(3, dtype=np.uint64)).tolist() == [
        0xB8B4C2977EABCE45,
        0x6E7CE04A63AC7DD2,
        0xD57883175ACF4013,
    ]
    # The first output of SplitMix64 from seed 0, as published with the algorithm.
    assert mix(np.zeros(1, np.uint64)).tolist() == [0xE220A8397B1DCDAF]
    assert generator(7).integers(0, 1000, 4).tolist() == [163, 872, 972, 295]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, "a"), (2, "a")),
        ((1, "a", 1), (1, "a", 2)),
        ((1, "a", "b"), (1, "ab")),
        ((1, "1"), (1, 1)),
        ((1, 1, 11), (1, 11, 1)),
        ((1,), (1, 0)),
    ],
)
def test_different_names_give_different_keys(one, other):
    assert stream_key(*one) != stream_key(*other)


def test_mix_is_a_bijection_on_a_sample():
    assert len(np.unique(mix(counters))) == len(counters)


@pytest.mark.parametrize("names", [("masks", 0), ("masks", 1), ("order", 0)])
def test_streams_are_even(names):
    drawn = uniform(stream_key(42, *names), counters)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    # Five standard errors of a mean and of a variance of even numbers.
    assert abs(drawn.mean() - 1 / 2) < 5 * np.sqrt(1 / 12 / len(counters))
    assert abs(drawn.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / len(counters))
    share = np.histogram(drawn, bins=64, range=(0, 1))[0] / len(counters)
    assert np.abs(share - 1 / 64).max() < 5 * np.sqrt(1 / 64 / len(counters))


def test_streams_and_neighbours_are_independent():
    one, other = (uniform(stream_key(42, "masks", epoch), counters) - 0.5 for epoch in (0, 1))
    limit = 5 / np.sqrt(len(counters)) / 12
    assert abs((one * other).mean()) < limit
    assert abs((one[:-1] * one[1:]).mean()) < limit


def test_keys_and_counters_broadcast():
    keys = np.array([[1], [2]], dtype=np.uint64)
    table = bits(keys, np.arange(5, dtype=np.uint64))
    assert table.shape == (2, 5)
    assert np.array_equal(table[1], bits(2, np.arange(5, dtype=np.uint64)))


@pytest.mark.parametrize("limit", [1, 2, 3, 10, 997])
def test_below_is_unbiased(limit):
    drawn = below(limit, stream_key(1, "below"), counters)
    assert drawn.min() >= 0
    assert drawn.max() < limit
    share = np.bincount(drawn, minlength=limit) / len(counters)
    assert np.abs(share - 1 / limit).max() < 5.5 * np.sqrt(1 / limit / len(counters))


@given(st.integers(1, 2**31 - 1), st.integers(0, 2**64 - 1))
def test_below_stays_below(limit, key):
    drawn = below(limit, key, np.arange(50, dtype=np.uint64))
    assert ((drawn >= 0) & (drawn < limit)).all()
