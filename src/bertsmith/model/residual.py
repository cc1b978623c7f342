"""What ends each half of a block: a linear map, dropped out, added to what the half was given, and normalised.

Legend: T token slots, H hidden width, W width of what is mapped.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bertsmith.model.cpu import kernels as cpu_kernels
from bertsmith.model.cpu.dropout import add_dropped
from bertsmith.model.linear import Linear, is_plain


class LayerNorm(nn.LayerNorm):
    """Normalises in the dtype of its weights, whatever that of x, and gives the result in it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


def add_mapped(x: Tensor, given: Tensor, linear: Linear, norm: LayerNorm, dropout: float) -> tuple[Tensor, Tensor]:
    """norm(x + dropout(linear(given))), in the dtype of x and in that of `given`.

    x: [T, H]. given: [T, W]. dropout: 0 outside training.
    """
    vectors = (norm.weight, norm.bias)
    wide = is_plain(linear) and all(each.dtype == torch.float32 for each in (x, *vectors))
    if wide and cpu_kernels.can_take(given, x, linear.bias, *vectors):
        y = linear.without_bias(given)  # whose sum with the bias would be rounded
        out, narrow = _AddNormalised.apply((norm.eps, dropout), x, y, linear.bias, *vectors)  # type: ignore[no-untyped-call]
        return out, narrow
    y = linear(given)
    out = norm(add_dropped(x, y, dropout, training=dropout > 0))
    return out, out.to(y.dtype)


class _AddNormalised(torch.autograd.Function):
    """In one visit; the places that were dropped are drawn again on the way back."""

    @staticmethod
    def forward(
        ctx: Any, how: tuple[float, float], x: Tensor, y: Tensor, bias: Tensor, weight: Tensor, shift: Tensor
    ) -> tuple[Tensor, Tensor]:
        """how: the norm's epsilon, and the probability of dropout."""
        ctx.set_materialize_grads(False)
        ctx.dropped = cpu_kernels.Dropped.draw(how[1])
        made = cpu_kernels.add_normalise(x, y, bias, weight, shift, how[0], ctx.dropped)
        ctx.save_for_backward(made.sum, made.moments, weight)
        return made.out, made.narrow

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_out: Tensor | None, by_narrow: Tensor | None) -> tuple[Tensor | None, ...]:
        sums, moments, weight = ctx.saved_tensors
        given = [None if each is None else each.contiguous() for each in (by_out, by_narrow)]
        if given == [None, None]:
            return (None,) * 6
        return None, *cpu_kernels.add_normalise_back(given[0], given[1], sums, moments, weight, ctx.dropped)
