"""The metrics of regression, in numpy, each row counting as often as its weight says; predictions and truths are of
shape [N]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bertsmith.tasks.scoring.resampling import Figures

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


def pearson(predicted: Floats, true: Floats, weights: Floats | None = None) -> float:
    """Pearson's correlation; 0 where one side is constant."""
    weights = _weights(true, weights)
    x, y = (_centred(side, weights) for side in (predicted, true))
    spread = np.sqrt((weights @ (x * x)) * (weights @ (y * y)))
    return float(weights @ (x * y) / spread) if spread > 0 else 0.0


def spearman(predicted: Floats, true: Floats, weights: Floats | None = None) -> float:
    """Spearman's rank correlation, equal values sharing their mean rank."""
    weights = _weights(true, weights)
    x, y = (_ranks(_places(side), weights) for side in (predicted, true))
    return pearson(x, y, weights)


def r2(predicted: Floats, true: Floats, weights: Floats | None = None) -> float:
    """The share of the variance that is explained; for constant truths 1 where all are met, else 0."""
    weights = _weights(true, weights)
    centred, missed = _centred(true, weights), true - predicted
    spread, left = weights @ (centred * centred), weights @ (missed * missed)
    return float(1 - left / spread) if spread > 0 else float(left == 0)


def rmse(predicted: Floats, true: Floats, weights: Floats | None = None) -> float:
    """The root of the mean squared error, in the unit of the labels."""
    return float(np.sqrt(np.average((predicted - true) ** 2, weights=weights)))


def mae(predicted: Floats, true: Floats, weights: Floats | None = None) -> float:
    """The mean absolute error, in the unit of the labels."""
    return float(np.average(np.abs(predicted - true), weights=weights))


NUMBER_METRICS: dict[str, Callable[[Floats, Floats], float]] = {
    "pearson": pearson,
    "spearman": spearman,
    "r2": r2,
    "rmse": rmse,
    "mae": mae,
}
"""All of them; of the last two the lowest is the best."""


def number_figures(predicted: Floats, true: Floats) -> Figures:
    """`NUMBER_METRICS`."""
    x, y = (np.asarray(side, dtype=np.float64) for side in (predicted, true))
    x_places, y_places = _places(x), _places(y)

    def of(weights: Floats) -> Floats:
        by_rank = pearson(_ranks(x_places, weights), _ranks(y_places, weights), weights)
        return np.array([pearson(x, y, weights), by_rank, *(metric(x, y, weights) for metric in (r2, rmse, mae))])

    return Figures(tuple(NUMBER_METRICS), of)


def _weights(true: Floats, weights: Floats | None) -> Floats:
    return np.ones(len(true)) if weights is None else weights


def _centred(values: Floats, weights: Floats) -> Floats:
    # From one of the values first: what is constant is then 0 exactly, and not a rounding error that correlates.
    values = values - values[weights.argmax()]
    return np.asarray(values - np.average(values, weights=weights), dtype=np.float64)


def _places(values: Floats) -> Ints:
    """The place of each value among the different ones, in ascending order: int64[N]."""
    return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)


def _ranks(places: Ints, weights: Floats) -> Floats:
    """Mean ranks of rows, given the places of their values in order, as if each stood there as often as it counts."""
    counts = np.bincount(places, weights)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[places], dtype=np.float64)
