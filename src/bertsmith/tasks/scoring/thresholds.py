"""From which probability on a label is given: the threshold with the highest F1 on dev rows.

Legend: N rows, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertsmith.tasks.scoring.resampling import Bools, Floats, Ints

HALF = 0.5
LEAST_POSITIVES = 5


@dataclass(frozen=True)
class Threshold:
    """A label is given where its probability is at least `value`.

    f1, f1_at_half: of the rows that it was tuned on, with it and with 0.5. positives: how many of these rows have the
    label. tuned: False where there are fewer than `LEAST_POSITIVES`, or no row without the label, so that 0.5 stays.
    """

    value: float
    f1: float
    f1_at_half: float
    positives: int
    tuned: bool


def best_threshold(probabilities: Floats, true: Bools, least: int = LEAST_POSITIVES) -> Threshold:
    """The threshold with the highest F1; probabilities: float64[N], true: bool[N].

    Only the gaps between different probabilities matter, so it is the middle of a gap, or 0.5 where the best gap holds
    it; of gaps with the same F1 the one nearest to 0.5, then the lower one. least: positive rows that are wanted.
    """
    positives, given = int(true.sum()), probabilities >= HALF
    at_half = 2 * int((true & given).sum()) / max(1, int(given.sum()) + positives)
    if positives < max(1, least) or positives == len(true):
        return Threshold(HALF, at_half, at_half, positives, tuned=False)
    order = np.argsort(-probabilities, kind="stable")
    down, hits = probabilities[order], np.cumsum(true[order])
    last = np.flatnonzero(np.append(down[1:] < down[:-1], True))  # the last row of each run of equal probabilities
    f1 = 2 * hits[last] / (last + 1 + positives)
    upper, lower = down[last], np.append(down[last[1:]], 0.0)
    middle = (upper + lower) / 2
    middle = np.where(middle > lower, middle, upper)  # neighbouring numbers have no middle
    values = np.where((lower < HALF) & (upper >= HALF), HALF, middle)
    best = np.flatnonzero(f1 == f1.max())
    chosen = best[np.lexsort((values[best], np.abs(values[best] - HALF)))[0]]
    return Threshold(float(values[chosen]), float(f1[chosen]), at_half, positives, tuned=True)


def best_thresholds(probabilities: Floats, true: Bools) -> list[Threshold]:
    """One for each label; probabilities: float64[N, L], true: bool[N, L]."""
    return [best_threshold(*each) for each in zip(probabilities.T, true.T, strict=True)]


def cross_fitted(probabilities: Floats, true: Bools, fold: Ints) -> Bools:
    """What thresholds decide that are tuned on the rows of the other folds: bool[N, L]. fold: int64[N].

    Its F1 is an honest figure of tuned thresholds; that of the rows that they were tuned on is too high.
    """
    decided = probabilities >= HALF
    for number in np.unique(fold):
        inside = fold == number
        if inside.all():
            break
        values = [each.value for each in best_thresholds(probabilities[~inside], true[~inside])]
        decided[inside] = probabilities[inside] >= np.array(values)
    return decided
