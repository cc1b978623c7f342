"""The metrics of classification, in numpy; all take predictions and truths of shape [N]."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


def accuracy(predicted: Ints, true: Ints) -> float:
    """The share that is right."""
    return float(np.mean(predicted == true))


def macro_f1(predicted: Ints, true: Ints) -> float:
    """The mean of the F1 of every class that is predicted or true anywhere."""
    return float(np.mean([_f1(predicted == each, true == each) for each in np.union1d(predicted, true)]))


def binary_f1(predicted: Ints, true: Ints, positive: int = 1) -> float:
    """The F1 of the class `positive`; 0 where it is neither predicted nor true."""
    return _f1(predicted == positive, true == positive)


def micro_f1(predicted: Ints, true: Ints, negative: int) -> float:
    """F1 of all classes but `negative` counted together, as relations are scored; 0 where none is predicted or true.

    An answer is right where it is the true class and that is not the negative one (Mehryary and others, 2018).
    """
    both = int(np.sum(predicted != negative)) + int(np.sum(true != negative))
    right = int(np.sum((predicted == true) & (true != negative)))
    return 2 * right / both if both else 0.0


def _f1(predicted: NDArray[np.bool_], true: NDArray[np.bool_]) -> float:
    both = int(np.sum(predicted)) + int(np.sum(true))
    return 2 * int(np.sum(predicted & true)) / both if both else 0.0


def matthews(predicted: Ints, true: Ints) -> float:
    """Matthews' correlation, for any number of classes (Gorodkin, 2004); 0 where one side is constant."""
    classes = np.union1d(predicted, true)
    p, t = (np.array([np.sum(side == each) for each in classes], dtype=np.float64) for side in (predicted, true))
    n, right = len(true), float(np.sum(predicted == true))
    spread = (n * n - p @ p) * (n * n - t @ t)
    return float((right * n - p @ t) / np.sqrt(spread)) if spread else 0.0


CLASS_METRICS: dict[str, Callable[[Ints, Ints], float]] = {
    "accuracy": accuracy,
    "macro_f1": macro_f1,
    "matthews": matthews,
}
"""Those for any number of classes; `binary_f1` wants to know which one is positive."""
