"""Metrics of rows with any number of labels each.

Legend: N rows, L labels; predicted and true are bool[N, L].
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bertsmith.tasks.scoring.confusion import ClassTable, class_table, f1_of, occurring
from bertsmith.tasks.scoring.resampling import Figures

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

METRICS = ("micro_f1", "macro_f1", "subset_accuracy", "hamming_loss")
"""micro_f1: of all decisions together. macro_f1: the mean over labels that are predicted or true anywhere.
subset_accuracy: the share of rows with exactly the true labels. hamming_loss: the share of wrong decisions."""


def label_table(predicted: Bools, true: Bools) -> ClassTable:
    """Precision, recall, F1 and support of every label."""
    counts = [np.asarray(side.sum(0), dtype=np.float64) for side in (predicted & true, predicted, true)]
    return class_table(*counts)


def label_figures(predicted: Bools, true: Bools, names: tuple[str, ...]) -> Figures:
    """`METRICS` and "f1 of NAME" for each label, NaN where a label is neither predicted nor true in the rows."""
    wrong = (predicted != true).sum(1)
    sides = np.concatenate([predicted & true, predicted, true], axis=1).astype(np.float64)
    whole = np.stack([wrong == 0, wrong / true.shape[1]], axis=1).astype(np.float64)

    def of(weights: Floats) -> Floats:
        right, said, meant = np.split(weights @ sides, 3)
        table = class_table(right, said, meant)
        here, decided = occurring(table), said.sum() + meant.sum()
        micro = 2 * right.sum() / decided if decided else 0.0
        macro = table.f1[here].mean() if here.any() else 0.0
        each = np.where(here, table.f1, np.nan)[: len(names)]
        return np.concatenate([[micro, macro], weights @ whole / weights.sum(), each])

    return Figures((*METRICS, *(f1_of(name) for name in names)), of)


def label_metrics(predicted: Bools, true: Bools) -> dict[str, float]:
    """`METRICS` of all rows."""
    found = label_figures(predicted, true, ()).of(np.ones(len(true)))
    return dict(zip(METRICS, found.tolist(), strict=True))
