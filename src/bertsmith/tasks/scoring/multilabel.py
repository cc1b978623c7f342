"""Metrics of rows with any number of labels each.

Legend: N rows, L labels; predicted and true are bool[N, L].
"""

from __future__ import annotations

import numpy as np

from bertsmith.tasks.scoring.classes import COUNT_METRICS, ClassTable, class_table, count_figures, f1_of
from bertsmith.tasks.scoring.resampling import Bools, Figures, Floats, mean_figures

METRICS = (*COUNT_METRICS, "subset_accuracy", "hamming_loss")
"""subset_accuracy: the share of rows with exactly the true labels. hamming_loss: the share of wrong decisions."""


def label_table(predicted: Bools, true: Bools) -> ClassTable:
    """Precision, recall, F1 and support of every label."""
    right, said, meant = (np.asarray(side.sum(0), np.float64) for side in (predicted & true, predicted, true))
    return class_table(right, said, meant)


def label_figures(predicted: Bools, true: Bools, names: tuple[str, ...]) -> Figures:
    """`METRICS` and "f1 of NAME" for each label, NaN where a label is neither predicted nor true in the rows."""
    wrong = (predicted != true).sum(1)
    whole = mean_figures(METRICS[len(COUNT_METRICS) :], np.stack([wrong == 0, wrong / true.shape[1]], axis=1))
    counted = count_figures(predicted & true, predicted, true, names)

    def of(weights: Floats) -> Floats:
        first, each = np.split(counted.of(weights), [len(COUNT_METRICS)], axis=-1)
        return np.concatenate((first, whole.of(weights), each), axis=-1)

    return Figures((*METRICS, *(f1_of(name) for name in names)), of)


def label_metrics(predicted: Bools, true: Bools) -> dict[str, float]:
    """`METRICS` of all rows."""
    return label_figures(predicted, true, ()).values(len(true))
