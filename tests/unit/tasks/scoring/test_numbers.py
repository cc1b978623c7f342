"""The metrics of numbers against scikit-learn and scipy, with rows counted several times or not at all."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.tasks.scoring.numbers import number_figures

sklearn = pytest.importorskip("sklearn.metrics")
stats = pytest.importorskip("scipy.stats")

pairs = st.lists(
    st.tuples(st.integers(-9, 9), st.floats(-100, 100).map(lambda x: round(x, 2)), st.integers(0, 3)),
    min_size=3,
    max_size=40,
).filter(lambda rows: sum(times for _, _, times in rows) > 2)


@given(pairs)
def test_equal_scikit_learn_and_scipy_on_repeated_rows(rows):
    x, y, times = (np.array(column) for column in zip(*rows, strict=True))
    x, y = x.astype(np.float64), y.astype(np.float64)
    figures = number_figures(x, y)
    found = dict(zip(figures.names, figures.of(times.astype(np.float64)), strict=True))
    x, y = np.repeat(x, times), np.repeat(y, times)
    assert found["rmse"] == pytest.approx(sklearn.root_mean_squared_error(y, x), abs=1e-9)
    assert found["mae"] == pytest.approx(sklearn.mean_absolute_error(y, x), abs=1e-9)
    if len(set(y)) > 1:
        assert found["r2"] == pytest.approx(sklearn.r2_score(y, x), rel=1e-9)
    if len(set(x)) > 1 and len(set(y)) > 1:
        assert found["pearson"] == pytest.approx(stats.pearsonr(x, y)[0], abs=1e-9)
        assert found["spearman"] == pytest.approx(stats.spearmanr(x, y)[0], abs=1e-9)
    else:
        assert found["pearson"] == found["spearman"] == 0
    assert number_figures(x, y).values(len(x)) == pytest.approx(found)


@pytest.mark.parametrize("constant", [0.1, 0.3, 1 / 3, 1e9 + 0.1])
def test_constants_correlate_with_nothing_and_explain_nothing(constant):
    # Their mean is not exactly the constant, so that rounding errors would correlate with each other.
    x, y = np.full(3, 0.1), np.full(3, constant)
    found = number_figures(x, y).values(3)
    assert found["pearson"] == found["spearman"] == 0
    assert number_figures(np.arange(3.0), y).values(3)["r2"] == 0
    assert number_figures(y, y).values(3)["r2"] == 1
    assert number_figures(np.full(3, np.nan), y).values(3)["r2"] == 0
    # Nor do they where a row of another number does not count, as in a resample without it.
    figures = number_figures(np.append(2.0, x), np.append(3.0, y))
    found = dict(zip(figures.names, figures.of(np.array([0.0, 1.0, 1.0, 1.0])), strict=True))
    assert (found["pearson"], found["spearman"], found["r2"]) == (0, 0, float(constant == 0.1))
