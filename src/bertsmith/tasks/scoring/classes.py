"""The metrics of classes: all that follows from how often each was taken for each other.

Legend: N rows, C classes; before these, shapes may have resamples of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.tasks.scoring.resampling import AT_ONCE, Figures, Floats, Ints, sums_at

METRICS = ("accuracy", "macro_f1", "matthews")
"""Those of any classes; `binary_f1` wants to know which one is positive, `micro_f1` which one is negative."""
COUNT_METRICS = ("micro_f1", "macro_f1", "micro_precision", "micro_recall")


@dataclass(frozen=True)
class ClassTable:
    """float64[C] each, 0 where a share has nothing to divide by. support: true rows; predicted: predicted rows."""

    precision: Floats
    recall: Floats
    f1: Floats
    support: Floats
    predicted: Floats

    def rows(self, names: list[str] | tuple[str, ...]) -> list[dict[str, Any]]:
        """A line for each class, as JSON takes it."""
        return [
            {
                "label": name,
                "precision": float(self.precision[place]),
                "recall": float(self.recall[place]),
                "f1": float(self.f1[place]),
                "support": int(self.support[place]),
                "predicted": int(self.predicted[place]),
            }
            for place, name in enumerate(names)
        ]


def class_table(right: Floats, predicted: Floats, true: Floats) -> ClassTable:
    """Of how many rows of each class are right, predicted and true: float64[C] each."""
    return ClassTable(
        precision=share(right, predicted),
        recall=share(right, true),
        f1=share(2 * right, predicted + true),
        support=true,
        predicted=predicted,
    )


@dataclass(frozen=True)
class Confusion:
    """How often each true class was predicted as each class, of the P pairs that occur, ascending: of 10,000 classes
    there are 100 million pairs. true, predicted, counts: int64[P]. classes: C."""

    classes: int
    true: Ints
    predicted: Ints
    counts: Ints

    def table(self) -> ClassTable:
        """Of each class by itself."""
        right = self.true == self.predicted
        sides = (self.true[right], self.counts[right]), (self.predicted, self.counts), (self.true, self.counts)
        return class_table(*(np.bincount(side, times, self.classes).astype(np.float64) for side, times in sides))

    def among(self, classes: Sequence[int]) -> Floats:
        """The matrix of K classes: float64[K, K], rows the true class, columns the predicted one."""
        places = np.full(self.classes, -1)
        places[classes] = np.arange(len(classes))
        rows, columns = places[self.true], places[self.predicted]
        here = (rows >= 0) & (columns >= 0)
        matrix = np.zeros((len(classes), len(classes)))
        matrix[rows[here], columns[here]] = self.counts[here]
        return matrix


def confusion(predicted: Ints, true: Ints, classes: int) -> Confusion:
    """Of N rows: int64[N] each."""
    pairs, counts = np.unique(true * classes + predicted, return_counts=True)
    return Confusion(classes, *np.divmod(pairs, classes), counts)


def share(part: Floats, whole: Floats) -> Floats:
    """part / whole, and 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros_like(whole, dtype=np.float64), where=whole > 0)


def occurring(table: ClassTable) -> NDArray[np.bool_]:
    """Which classes are predicted or true anywhere; only they count in a macro average."""
    return np.asarray(table.support + table.predicted > 0)


def _macro(table: ClassTable) -> tuple[Floats, Floats]:
    """The mean F1 of the classes that occur, 0 where there are none; and the F1 of each, NaN where it does not."""
    here = occurring(table)
    return share((table.f1 * here).sum(-1), here.sum(-1)), np.where(here, table.f1, np.nan)


def _matthews(right: Floats, predicted: Floats, true: Floats) -> Floats:
    """Matthews' correlation as Gorodkin (2004) has it, of how many rows of each class are right, predicted and true:
    float64[C] each; 0 where a side is constant."""
    rows = true.sum(-1)
    of_predicted, of_true, of_both = ((a * b).sum(-1) for a, b in ((predicted,) * 2, (true,) * 2, (predicted, true)))
    spread = (rows * rows - of_predicted) * (rows * rows - of_true)
    return share(right.sum(-1) * rows - of_both, np.sqrt(np.maximum(spread, 0)))


def class_figures(
    predicted: Ints, true: Ints, names: tuple[str, ...], positive: int | None = None, negative: int | None = None
) -> Figures:
    """`METRICS`, `binary_f1` where there is a positive class, `micro_f1` of all classes but a negative one where there
    is one, and "f1 of NAME" for each class.

    An answer counts for `micro_f1` where it is the true class and that is not the negative one, as relations are scored
    (Mehryary and others, 2018). The F1 of a class that no row of a resample has or is taken for is undefined (NaN).
    """
    some = [name for name, each in (("binary_f1", positive), ("micro_f1", negative)) if each is not None]
    others = [place for place in range(len(names)) if place != negative]
    met = np.asarray(predicted == true, dtype=np.float64)

    def of(weights: Floats) -> Floats:
        sides = ((true, weights * met), (predicted, weights), (true, weights))
        counts = [sums_at(side, times, len(names)) for side, times in sides]
        table = class_table(*counts)
        macro, each = _macro(table)
        found = [counts[0].sum(-1) / counts[2].sum(-1), macro, _matthews(*counts)]
        if positive is not None:
            found.append(table.f1[..., positive])
        if negative is not None:
            found.append(class_table(*(each[..., others].sum(-1) for each in counts)).f1)
        return np.concatenate([np.stack(found, axis=-1), each], axis=-1)

    return Figures((*METRICS, *some, *(f1_of(name) for name in names)), of)


def class_metrics(
    predicted: Ints, true: Ints, classes: int, positive: int | None = None, negative: int | None = None
) -> dict[str, float]:
    """Those of `class_figures` that are not of a class, over all rows."""
    found = class_figures(predicted, true, tuple(map(str, range(classes))), positive, negative).values(len(true))
    return {name: value for name, value in found.items() if not name.startswith(f1_of(""))}


def accuracy(predicted: Ints, true: Ints) -> float:
    """The share that is right."""
    return float(np.mean(predicted == true))


def count_figures(right: NDArray[Any], predicted: NDArray[Any], true: NDArray[Any], names: tuple[str, ...]) -> Figures:
    """`COUNT_METRICS` and "f1 of NAME" for each of L labels or types, of which a row has any number.

    right, predicted, true: how many of each a row has, [N, L]. micro: of all together. macro_f1: the mean over labels
    that are predicted or true anywhere.
    """
    sides = np.concatenate([right, predicted, true], axis=1)
    rows, columns = np.nonzero(sides)  # of many labels a row has few
    times = sides[rows, columns]

    def of(weights: Floats) -> Floats:
        if weights.ndim > 1 and len(weights) * len(rows) > AT_ONCE:  # where rows have many labels
            return np.stack([of(each) for each in weights])
        counts = np.split(sums_at(columns, weights[..., rows] * times, sides.shape[1]), 3, axis=-1)
        table, whole = class_table(*counts), class_table(*(each.sum(-1) for each in counts))
        macro, each = _macro(table)
        found = np.stack([whole.f1, macro, whole.precision, whole.recall], axis=-1)
        return np.concatenate([found, each[..., : len(names)]], axis=-1)

    return Figures((*COUNT_METRICS, *(f1_of(name) for name in names)), of)


def f1_of(name: str) -> str:
    """What the F1 of a class is called among figures."""
    return f"f1 of {name}"
