"""Curves from records, and fewer points that keep the ends and every peak."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.report.curves import HELD_OUT, TEST_ROWS, TRAINING, Curves, thinned
from made_reports import train_record


@given(st.lists(st.floats(min_value=-1e6, max_value=1e6), min_size=1, max_size=400), st.integers(4, 60))
def test_thinning_keeps_ends_and_extremes(values: list[float], most: int) -> None:
    xs, ys = np.arange(len(values), dtype=np.float64), np.array(values)
    kept, heights = thinned(xs, ys, most)
    assert len(kept) <= max(most, 0) or len(kept) == len(xs) <= most
    assert (kept[0], kept[-1]) == (xs[0], xs[-1])
    assert (heights.min(), heights.max()) == (ys.min(), ys.max())
    assert np.all(np.diff(kept) > 0)
    assert np.array_equal(ys[kept.astype(int)], heights), "every point is one of the curve"


def test_phases_are_one_curve_and_seeds_one_each() -> None:
    curves = Curves()
    for step in range(1, 4):
        curves.add(train_record(step, phase=1 if step < 3 else 2))
    curves.add({"kind": "evaluation", "step": 3, "phase": 2, "phase_step": 1, "masked_loss": 2.0, "sequences": 4})
    assert list(curves.of["loss", TRAINING, ""].steps) == [1, 2, 3]
    assert list(curves.of["masked_loss", HELD_OUT, ""].values) == [2]
    assert ("sequences", HELD_OUT, "") not in curves.of, "a count is no curve"
    assert curves.phases == {1: 1, 2: 3}
    tuned = Curves()
    for label, step, inside in (("fold", 2, 2), ("seed", 4, 2), ("seed", 6, 4)):
        own = {"kind": "train", "step": step, label: 42, f"{label}_step": inside, "loss": 1.0}
        tuned.add(own)
        tuned.add({**own, "kind": "evaluation", "f1": 0.5, "test_f1": 0.4})
    assert list(tuned.of["loss", TRAINING, "seed 42"].steps) == [2, 4]
    assert list(tuned.of["f1", TEST_ROWS, "seed 42"].values) == [0.4, 0.4]
    assert (tuned.stages, tuned.undrawn_stages) == (["seed 42"], ["fold 42"])


def test_totals_weigh_lines_by_their_time() -> None:
    curves = Curves()
    curves.add(train_record(1, steps=3.0, seconds_per_step=2.0, data_wait_share=0.5, memory_bytes=1e9, peak_share=0.2))
    curves.add(train_record(2, steps=1.0, seconds_per_step=4.0, data_wait_share=0.0, memory_bytes=3e9, peak_share=0.4))
    totals = curves.totals
    assert (totals.seconds, totals.waited_seconds, totals.tokens, totals.memory_bytes) == (10, 3, 200, 3e9)
    assert math.isclose(totals.share_seconds / totals.seconds, 0.28)


def test_what_cannot_be_drawn_is_counted() -> None:
    curves = Curves()
    for value in (math.nan, math.inf, 1e200, 1.0):
        curves.add(train_record(1, loss=value))
    assert curves.undrawn == 3
    assert list(curves.of["loss", TRAINING, ""].values) == [1]
