"""The metrics of regression, in numpy, each row counting as often as its weight says; predictions and truths are of
shape [N]."""

from __future__ import annotations

import numpy as np

from bertsmith.tasks.scoring.resampling import Figures, Floats, Ints


def number_figures(predicted: Floats, true: Floats) -> Figures:
    """All of them; of the last two, which are in the unit of the labels, the lowest is the best."""
    x, y = (np.asarray(side, dtype=np.float64) for side in (predicted, true))
    x_places, y_places = _places(x), _places(y)

    def of(weights: Floats) -> Floats:
        by_rank = _pearson(_ranks(x_places, weights), _ranks(y_places, weights), weights)
        rmse = np.sqrt(np.average((x - y) ** 2, weights=weights))
        mae = np.average(np.abs(x - y), weights=weights)
        return np.array([_pearson(x, y, weights), by_rank, _r2(x, y, weights), rmse, mae])

    return Figures(("pearson", "spearman", "r2", "rmse", "mae"), of)


def _pearson(x: Floats, y: Floats, weights: Floats) -> float:
    """Pearson's correlation; 0 where one side is constant."""
    x, y = (_centred(side, weights) for side in (x, y))
    # Not by dot products: on a machine with other work their threads wait for each other, longer than all else takes.
    xx, yy, xy = (np.average(each, weights=weights) for each in (x * x, y * y, x * y))
    return float(xy / np.sqrt(xx * yy)) if xx * yy > 0 else 0.0


def _r2(predicted: Floats, true: Floats, weights: Floats) -> float:
    """The share of the variance that is explained; for constant truths 1 where all are met, else 0."""
    centred, missed = _centred(true, weights), true - predicted
    spread, left = (np.average(each * each, weights=weights) for each in (centred, missed))
    return float(1 - left / spread) if spread > 0 else float(left == 0)


def _centred(values: Floats, weights: Floats) -> Floats:
    # From one of the values first: what is constant is then 0 exactly, and not a rounding error that correlates.
    values = values - values[weights.argmax()]
    return np.asarray(values - np.average(values, weights=weights), dtype=np.float64)


def _places(values: Floats) -> Ints:
    """The place of each value among the different ones, in ascending order: int64[N]."""
    return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)


def _ranks(places: Ints, weights: Floats) -> Floats:
    """Mean ranks of rows, which equal values share, given the places of their values in order: as if each row stood
    there as often as it counts."""
    counts = np.bincount(places, weights)
    return np.asarray((np.cumsum(counts) - (counts - 1) / 2)[places], dtype=np.float64)
