"""Axes of any values: round ticks that rise, enclose what they are of, and have labels that differ and are true."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bertsmith.report.axes import labels, rounded_axis, tight_axis
from bertsmith.report.svg import spread

VALUES = st.floats(min_value=-1e100, max_value=1e100, allow_nan=False)


@given(VALUES, VALUES)
@example(0.0, 5e-324)
@example(1.0, 1.0 + 1e-15)
def test_a_rounded_axis_encloses_its_values_between_its_ticks(a: float, b: float) -> None:
    low, high = sorted((a, b))
    axis = rounded_axis(low, high, 100, -80)
    size = 1e-6 * (axis.high - axis.low)
    assert axis.low - size <= low <= high <= axis.high + size
    assert all(before < after for before, after in itertools.pairwise(axis.ticks))
    assert 2 <= len(axis.ticks) <= 12
    assert (axis.ticks[0], axis.ticks[-1]) == (axis.low, axis.high)
    assert 20 - 1e-3 <= axis.place(high) <= axis.place(low) <= 100 + 1e-3
    assert len(set(axis.labels)) == len(axis.ticks)


@given(VALUES, VALUES)
def test_a_tight_axis_has_its_ticks_inside(a: float, b: float) -> None:
    low, high = sorted((a, b))
    axis = tight_axis(low, high, 0, 300)
    assert axis.ticks
    assert all(-1 <= axis.place(tick) <= 301 for tick in axis.ticks)
    assert len(set(axis.labels)) == len(axis.ticks)


@given(st.floats(min_value=1e-9, max_value=1e12), st.floats(min_value=0.01, max_value=0.99))
def test_labels_say_what_the_ticks_are(high: float, share: float) -> None:
    axis = rounded_axis(high * share, high, 0, 1)
    sizes = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
    step = axis.ticks[1] - axis.ticks[0]
    for tick, label in zip(axis.ticks, axis.labels, strict=True):
        found = re.fullmatch(r"(-?[\d.]+)(e-?\d+|[kMGT]?)", label)
        assert found, label
        size = float(f"1{found[2]}") if found[2].startswith("e") else sizes[found[2]]
        assert float(found[1]) * size == pytest.approx(tick, abs=step / 100)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([0.0, 0.5, 1.0], ["0", "0.5", "1.0"]),
        ([0.0, 20_000.0, 40_000.0], ["0", "20k", "40k"]),
        ([0.0, 5e-5, 1e-4], ["0", "0.5e-4", "1.0e-4"]),
        ([6.7, 6.75, 6.8], ["6.70", "6.75", "6.80"]),
        ([3.0], ["3"]),
    ],
)
def test_labels(values: list[float], said: list[str]) -> None:
    assert labels(values) == said


@given(st.lists(st.floats(min_value=0, max_value=100), min_size=1, max_size=9))
def test_keys_at_the_ends_of_curves_do_not_cover_one_another(places: list[float]) -> None:
    found = spread(sorted(places), 10, 5, 100)
    assert all(after - before >= 10 - 1e-6 for before, after in itertools.pairwise(found))
    assert all(5 - 1e-6 <= place <= 100 for place in found)
