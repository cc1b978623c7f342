"""The metrics of regression, in numpy, each row counting as often as its weight says; predictions and truths are of
shape [N], weights of [..., N]."""

from __future__ import annotations

import numpy as np

from bertsmith.tasks.scoring.resampling import Figures, Floats, Ints, sums_at, weighted_means


def number_figures(predicted: Floats, true: Floats) -> Figures:
    """All of them; of the last two, which are in the unit of the labels, the lowest is the best."""
    x, y = (np.asarray(side, dtype=np.float64) for side in (predicted, true))
    x_places, y_places = _places(x), _places(y)

    def of(weights: Floats) -> Floats:
        by_rank = _pearson(_ranks(x_places, weights), _ranks(y_places, weights), weights)
        rmse, mae = np.sqrt(weighted_means((x - y) ** 2, weights)), weighted_means(np.abs(x - y), weights)
        return np.stack([_pearson(x, y, weights), by_rank, _r2(x, y, weights), rmse, mae], axis=-1)

    return Figures(("pearson", "spearman", "r2", "rmse", "mae"), of)


def _pearson(x: Floats, y: Floats, weights: Floats) -> Floats:
    """Pearson's correlation; 0 where one side is constant."""
    x, y = (_centred(side, weights) for side in (x, y))
    xx, yy, xy = (weighted_means(each, weights) for each in (x * x, y * y, x * y))
    spread = np.sqrt(xx * yy)
    return np.divide(xy, spread, out=np.zeros_like(xy), where=spread > 0)


def _r2(predicted: Floats, true: Floats, weights: Floats) -> Floats:
    """The share of the variance that is explained; for constant truths 1 where all are met, else 0."""
    centred, missed = _centred(true, weights), true - predicted
    spread, left = (weighted_means(each * each, weights) for each in (centred, missed))
    unexplained = np.divide(left, spread, out=np.array(left != 0, dtype=np.float64), where=spread > 0)
    return np.asarray(1 - unexplained)


def _centred(values: Floats, weights: Floats) -> Floats:
    # From one of the values first: what is constant is then 0 exactly, and not a rounding error that correlates.
    values = np.broadcast_to(values, weights.shape)
    values = values - np.take_along_axis(values, weights.argmax(-1, keepdims=True), axis=-1)
    return np.asarray(values - weighted_means(values, weights)[..., None], dtype=np.float64)


def _places(values: Floats) -> Ints:
    """The place of each value among the different ones, in ascending order: int64[N]."""
    return np.asarray(np.unique(values, return_inverse=True)[1], dtype=np.int64)


def _ranks(places: Ints, weights: Floats) -> Floats:
    """Mean ranks of rows, which equal values share, given the places of their values in order: as if each row stood
    there as often as it counts."""
    counts = sums_at(places, weights, int(places.max()) + 1)
    return np.asarray((np.cumsum(counts, axis=-1) - (counts - 1) / 2).take(places, axis=-1), dtype=np.float64)
