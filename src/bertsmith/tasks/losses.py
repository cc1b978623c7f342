"""Losses of classifiers: with weights of classes, focal, and with smoothed labels, as sums with counts.

Legend: N rows, C classes, L labels of which a row has any number. Weights are relative: they average 1 over the
training rows, and do not change the count. So the loss of a step is its sum divided by its rows, whatever rows it was
dealt and however it was cut up; torch divides by the sum of the weights of each batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy, logsigmoid

from bertsmith.model.losses import LossSum, cross_entropy_sum

# (1 - p) ** gamma has no derivative at p = 1 for gamma < 1; below this the loss is 0 in fp32.
_SURE = 1e-30


@dataclass(frozen=True)
class Rarity:
    """How a loss favours rare or difficult classes.

    weights: of each class, or of the absence and the presence of each label ([L, 2]); None for all alike. gamma: of
    the focal loss, (1 - p) ** gamma times the loss (Lin et al., 2017); 0 for none. smoothing: the share of a label
    that is spread over all classes (Szegedy et al., 2016).
    """

    weights: tuple[float, ...] | tuple[tuple[float, float], ...] | None = None
    gamma: float = 0.0
    smoothing: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Whether this is the usual loss."""
        return self.weights is None and not self.gamma and not self.smoothing


PLAIN = Rarity()


def single_label_sum(logits: Tensor, labels: Tensor, rarity: Rarity) -> LossSum:
    """Cross entropy of logits[N, C] against labels int64[N], in fp32 or wider; labels of -100 do not count.

    The count is that of the rows. Smoothed and weighted, each class's share has that class's weight, as in torch.
    """
    if rarity.is_plain:
        return cross_entropy_sum(logits, labels)
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    weights = None if rarity.weights is None else scores.new_tensor(rarity.weights)
    counted = labels >= 0
    if rarity.gamma:
        each = cross_entropy(scores, labels, reduction="none")
        own = 1.0 if weights is None else weights[labels.clamp(min=0)]
        loss = (own * _focus(each, rarity.gamma) * each).sum()
    else:
        loss = cross_entropy(scores, labels, weights, reduction="sum", label_smoothing=rarity.smoothing)
    return LossSum(loss, counted.sum(), ((scores.argmax(-1) == labels) & counted).sum())


def multi_label_sum(logits: Tensor, labels: Tensor, rarity: Rarity) -> LossSum:
    """Binary cross entropy of logits[N, L] against labels of 0 and 1, [N, L], in fp32 or wider.

    The count is N * L, so that the mean is that of torch's BCEWithLogitsLoss.
    """
    scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
    present = labels > 0
    targets = labels.to(scores.dtype) * (1 - rarity.smoothing) + rarity.smoothing / 2
    each = -(targets * logsigmoid(scores) + (1 - targets) * logsigmoid(-scores))
    if rarity.gamma:
        each = _focus(each, rarity.gamma) * each
    if rarity.weights is not None:
        absent_weight, present_weight = scores.new_tensor(rarity.weights).unbind(-1)
        each = torch.where(present, present_weight, absent_weight) * each
    return LossSum(each.sum(), torch.full((), labels.numel(), device=labels.device), ((scores >= 0) == present).sum())


def balanced_weights(counts: NDArray[np.int64]) -> tuple[float, ...]:
    """The weight of each class: N / (C * its rows), C counting those that have rows, so that all of these weigh the
    same in total and rows 1 on average.

    counts: training rows of each class, int64[C]. A class without rows keeps weight 1.
    """
    found = counts.sum() / (np.count_nonzero(counts) * np.maximum(counts, 1))
    return tuple(np.where(counts > 0, found, 1.0).tolist())


def balanced_label_weights(counts: NDArray[np.int64], rows: int) -> tuple[tuple[float, float], ...]:
    """The weights of the absence and the presence of each label: as those of two classes.

    counts: training rows that have each label, int64[L]. A label that all rows have, or none, keeps weight 1.
    """
    both = np.stack([rows - counts, counts], axis=1)
    halves = np.where(both.min(1, keepdims=True) > 0, rows / (2 * np.maximum(both, 1)), 1.0)
    return tuple((float(absent), float(present)) for absent, present in halves)


def _focus(loss: Tensor, gamma: float) -> Tensor:
    """(1 - p) ** gamma of rows whose loss is -log p."""
    return (-torch.expm1(-loss)).clamp(min=_SURE) ** gamma
