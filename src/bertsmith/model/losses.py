"""Losses as sums with counts: whoever averages divides once, over all micro-batches and ranks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

IGNORED_LABEL = -100


@dataclass
class LossSum:
    """A summed loss, how many labels it sums over, and how many of them were predicted right; scalars on the device."""

    loss: Tensor
    count: Tensor
    right: Tensor

    def __add__(self, other: Self) -> Self:
        return type(self)(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> LossSum:
    """Cross entropy of logits[N, C] against labels int64[N], in fp32 or wider; labels of -100 do not count."""
    wide = logits.float() if logits.dtype.itemsize < 4 else logits
    loss = functional.cross_entropy(wide, labels, ignore_index=IGNORED_LABEL, reduction="sum")
    with torch.no_grad():
        counted = labels != IGNORED_LABEL
        return LossSum(loss, counted.sum(), ((wide.argmax(-1) == labels) & counted).sum())
