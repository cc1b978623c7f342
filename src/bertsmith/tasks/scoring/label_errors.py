"""The rows whose labels are likeliest to be wrong, from what a model thinks of rows that it was not trained on.

Northcutt, Jiang and Chuang, "Confident learning: estimating uncertainty in dataset labels", 2021. Legend: N rows,
C classes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertsmith.tasks.scoring.classes import share
from bertsmith.tasks.scoring.resampling import Floats, Ints

MOST = 20


@dataclass(frozen=True)
class Doubt:
    """A row whose label is in doubt.

    given, suggested: classes. self_confidence: the probability of the given class. margin: that, less the probability
    of the likeliest other class, from -1 (surely wrong) to 1. loss: of the given class, in nats.
    """

    row: int
    given: int
    suggested: int
    self_confidence: float
    margin: float
    loss: float


def worst_by_loss(logs: Floats, given: Ints) -> list[Doubt]:
    """The rows whose given label has the lowest probability of all, out of those that the model labels otherwise.

    logs: log-probabilities, float64[N, C]. given: int64[N]. Equal losses keep the order of the rows.
    """
    rows = np.arange(len(given))
    other = _without(logs, given).argmax(1)
    candidates = np.flatnonzero(logs[rows, other] > logs[rows, given])
    order = candidates[np.argsort(logs[candidates, given[candidates]], kind="stable")]
    return [_doubt(logs, given, int(other[row]), int(row)) for row in order[:MOST]]


def confident_doubts(logs: Floats, given: Ints) -> list[Doubt]:
    """The rows that confident learning counts as wrongly labelled, lowest normalised margin first.

    logs: log-probabilities, float64[N, C], from models that did not see the row (out-of-fold). A class is believed of
    a row where its probability is at least the mean that rows with this label have; the likeliest of these is
    suggested. Measuring each class by its own mean makes allowance for classes that a model is generally less sure of.
    """
    p = np.exp(logs)
    rows, classes = np.arange(len(given)), logs.shape[1]
    counts = np.bincount(given, minlength=classes).astype(np.float64)
    sums = np.bincount(given, p[rows, given], minlength=classes)
    means = np.where(counts > 0, share(np.asarray(sums, dtype=np.float64), counts), np.inf)
    believed = np.where(p >= means, p, -1.0)
    suggested = believed.argmax(1)
    candidates = np.flatnonzero((believed.max(1) >= 0) & (suggested != given))
    margins = p[rows, given] - np.exp(_without(logs, given).max(1))
    order = candidates[np.argsort(margins[candidates], kind="stable")]
    return [_doubt(logs, given, int(suggested[row]), int(row)) for row in order[:MOST]]


def _without(logs: Floats, given: Ints) -> Floats:
    """The log-probabilities of the classes that are not given; -infinity for the one that is."""
    others = logs.copy()
    others[np.arange(len(given)), given] = -np.inf
    return others


def _doubt(logs: Floats, given: Ints, suggested: int, row: int) -> Doubt:
    own = float(logs[row, given[row]])
    others = np.delete(logs[row], given[row])
    confidence = float(np.exp(own))
    return Doubt(row, int(given[row]), suggested, confidence, confidence - float(np.exp(others.max())), -own)
