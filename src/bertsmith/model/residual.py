"""What ends each half of a block: what it computed is dropped out, added to what it was given, and normalised.

Legend: T token slots, H hidden width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bertsmith.model import cpu_kernels
from bertsmith.model.dropout import add_dropped


class LayerNorm(nn.LayerNorm):
    """Normalises in the dtype of its weights, whatever that of x, and gives the result in it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


def add_normalised(x: Tensor, y: Tensor, norm: LayerNorm, dropout: float) -> tuple[Tensor, Tensor]:
    """norm(x + dropout(y)), in the dtype of x and in that of y. x, y: [T, H]; dropout: 0 outside training."""
    weights = (norm.weight, norm.bias)
    if cpu_kernels.can_take(y, x, *weights) and all(each.dtype == torch.float32 for each in (x, *weights)):
        out, narrow = _AddNormalised.apply(x, y, *weights, norm.eps, dropout)  # type: ignore[no-untyped-call]
        return out, narrow
    out = norm(add_dropped(x, y, dropout, training=dropout > 0))
    return out, out.to(y.dtype)


class _AddNormalised(torch.autograd.Function):
    """In one visit; the places that were dropped are drawn again on the way back."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, y: Tensor, weight: Tensor, shift: Tensor, epsilon: float, dropout: float
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.dropped = cpu_kernels.Dropped.draw(dropout)
        made = cpu_kernels.add_normalise(x, y, weight, shift, epsilon, ctx.dropped)
        ctx.save_for_backward(made.sum, made.moments, weight)
        return made.out, made.narrow

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_out: Tensor | None, by_narrow: Tensor | None) -> tuple[Tensor | None, ...]:
        sums, moments, weight = ctx.saved_tensors
        given = [None if each is None else each.contiguous() for each in (by_out, by_narrow)]
        if given == [None, None]:
            return (None,) * 6
        return *cpu_kernels.add_normalise_back(given[0], given[1], sums, moments, weight, ctx.dropped), None, None
