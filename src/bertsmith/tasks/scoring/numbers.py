"""The metrics of regression, in numpy; all take predictions and truths of shape [N]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def pearson(predicted: Floats, true: Floats) -> float:
    """Pearson's correlation; 0 where one side is constant."""
    x, y = predicted - np.mean(predicted), true - np.mean(true)
    spread = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / spread) if spread else 0.0


def spearman(predicted: Floats, true: Floats) -> float:
    """Spearman's rank correlation, equal values sharing their mean rank."""
    return pearson(_ranks(predicted), _ranks(true))


def _ranks(values: Floats) -> Floats:
    _, index, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return np.asarray((last - (counts - 1) / 2)[index], dtype=np.float64)


def r2(predicted: Floats, true: Floats) -> float:
    """The share of the truths' variance that is explained; 0 where they are all the same."""
    spread = float(np.sum((true - np.mean(true)) ** 2))
    return 1 - float(np.sum((predicted - true) ** 2)) / spread if spread else 0.0


def rmse(predicted: Floats, true: Floats) -> float:
    """The root of the mean squared error."""
    return float(np.sqrt(np.mean((predicted - true) ** 2)))


def mae(predicted: Floats, true: Floats) -> float:
    """The mean absolute error."""
    return float(np.mean(np.abs(predicted - true)))


NUMBER_METRICS: dict[str, Callable[[Floats, Floats], float]] = {
    "pearson": pearson,
    "spearman": spearman,
    "r2": r2,
    "rmse": rmse,
    "mae": mae,
}
"""All of them; of the last two the lowest is the best."""
