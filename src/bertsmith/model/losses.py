"""Losses as sums with counts, divided once, over all micro-batches and ranks.

Legend: N labels, C classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bertsmith.base.errors import BertsmithError
from bertsmith.base.layout import IGNORED_LABEL
from bertsmith.model.checks import check_labels
from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.library import can_take

# Scores worked on at once: few enough to stay in a core's cache, many enough that calls cost nothing.
_CHUNK_ELEMENTS = 1 << 19


@dataclass
class LossSum:
    """A summed loss, how many labels it sums over, and how many of them were predicted right; scalars on the device.

    right: minus the count for a loss of numbers, which no prediction meets exactly; records then have no accuracy.
    """

    loss: Tensor
    count: Tensor
    right: Tensor


@dataclass
class Forward:
    """A micro-batch after its forward pass.

    losses: by name, in the order in which they are added up. tokens: real ones. slots: tokens and filling.
    attention_places: slots that attention worked on, padding included. flop: floating-point operations of its matrix
    products, forward and backward, without padding.
    """

    losses: Mapping[str, LossSum]
    tokens: int
    slots: int
    attention_places: int
    flop: float = 0.0


def cross_entropy_sum(logits: Tensor, labels: Tensor) -> LossSum:
    """Cross entropy of logits[N, C] against labels int64[N], in fp32 or wider; labels of -100 do not count.

    Raises BertsmithError for another number of labels than of scores; and for any other label that is no class, but not
    on a GPU, where looking at them would wait for it.
    """
    # It makes one visit of the plain words, knows all scores at once, and refuses other shapes itself.
    if torch.compiler.is_compiling():
        scores = logits.to(torch.promote_types(logits.dtype, torch.float32))
        loss = torch.nn.functional.cross_entropy(scores, labels, ignore_index=IGNORED_LABEL, reduction="sum")
        right = (scores.argmax(-1) == labels).sum()
    else:
        if logits.ndim != 2 or labels.shape != logits.shape[:1]:
            what = f"labels of shape {list(labels.shape)} beside scores of shape {list(logits.shape)}"
            fix = f"give a label for each row of scores, {IGNORED_LABEL} where there is none"
            raise BertsmithError(what, "the loss's labels", fix)
        if not labels.is_cuda:
            check_labels(labels, logits.shape[1])
        loss, right = _CrossEntropySum.apply(logits, labels)  # type: ignore[no-untyped-call]
    return LossSum(loss, (labels != IGNORED_LABEL).sum(), right)


class _CrossEntropySum(torch.autograd.Function):
    """Loss and gradient in one visit to the scores, chunk by chunk; only the gradient is kept, in the scores' dtype."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        if labels.dtype == torch.int64 and can_take(logits, labels):
            loss, right, ctx.gradient = kernels.cross_entropy(logits, labels, ctx.needs_input_grad[0])
            ctx.mark_non_differentiable(right)
            return loss, right
        wide = torch.promote_types(logits.dtype, torch.float32)
        gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        loss = torch.zeros((), dtype=wide, device=logits.device)
        right = torch.zeros((), dtype=torch.int64, device=logits.device)
        for part in _chunks(logits):
            label, counted = labels[part].clamp(min=0), labels[part] != IGNORED_LABEL
            scores = logits[part].to(wide)
            highest, guess = scores.max(-1)
            scores = scores - highest[:, None]
            score = scores.gather(1, label[:, None])[:, 0]
            powers = scores.exp_()
            total = powers.sum(-1)
            loss += ((total.log() - score) * counted).sum()
            right += ((guess == label) & counted).sum()
            if gradient is not None:
                powers *= (counted / total)[:, None]
                powers.scatter_add_(1, label[:, None], -counted[:, None].to(wide))
                gradient[part] = powers
        ctx.gradient = gradient
        ctx.mark_non_differentiable(right)
        return loss, right

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_loss: Tensor, grad_right: Tensor) -> tuple[Tensor, None]:
        del grad_right
        # The factor is one over a count. Rounded to half precision it would weigh this loss up to 0.4% more or less
        # than the one beside it; a number of Python is not.
        if grad_loss.device.type == "cpu":
            return ctx.gradient * grad_loss.item(), None
        return (ctx.gradient.to(grad_loss.dtype) * grad_loss).to(ctx.gradient.dtype), None


def _chunks(scores: Tensor) -> Iterator[slice]:
    """Slices of the rows of scores[N, C]: of few elements on a CPU, all at once elsewhere."""
    rows = _CHUNK_ELEMENTS // max(scores.shape[1], 1) if scores.device.type == "cpu" else len(scores)
    rows = max(rows, 1)
    for start in range(0, len(scores), rows):
        yield slice(start, start + rows)
