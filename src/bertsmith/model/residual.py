"""What ends each half of a block: a linear map and dropout, added to what the half was given, and normalised.

Legend: T token slots, H hidden width, W width of what is mapped.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bertsmith.base import device
from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.library import can_take
from bertsmith.model.cpu.masks import Dropped, scale_of, threshold_of
from bertsmith.model.dropout import add_dropped, are_kept, in_bits
from bertsmith.model.linear import Linear, is_plain, product
from bertsmith.model.triton.dropout import kept_bits
from bertsmith.model.triton.residual import add_normalised_backward, can_run


class LayerNorm(nn.LayerNorm):
    """Normalises in the dtype of its weights, whatever that of x, and gives the result in it."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.weight.dtype))


def add_mapped(x: Tensor, given: Tensor, linear: Linear, norm: LayerNorm, dropout: float) -> tuple[Tensor, Tensor]:
    """norm(x + dropout(linear(given))), in the dtype of x and in that of `given`.

    x: [T, H]. given: [T, W]. dropout: 0 outside training.
    """
    vectors = (norm.weight, norm.bias)
    wide = is_plain(linear, given.dtype) and all(each.dtype == torch.float32 for each in (x, *vectors))
    if wide and can_take(given, x, linear.bias, *vectors):
        y = product(given, [linear.weight])  # whose sum with the bias would be rounded
        dropped = Dropped.draw(dropout)
        out, narrow = _AddNormalised.apply(norm.eps, dropped, x, y, linear.bias, *vectors)  # type: ignore[no-untyped-call]
        return out, narrow
    drawn = not dropout or in_bits(x, dropout, training=True)
    if wide and drawn and torch.compiler.is_compiling() and device.is_on_gpu(x) and can_run(x):
        y = product(given, [linear.weight], [linear.bias.detach()])
        outs = _AddNormalisedInGraph.apply(norm.eps, dropout, x, y, linear.bias, *vectors)  # type: ignore[no-untyped-call]
        return outs[0], outs[-1]
    y = linear(given)
    out = norm(add_dropped(x, y, dropout, training=dropout > 0))
    return out, out.to(y.dtype)


class _AddNormalised(torch.autograd.Function):
    """In one visit to memory; the places that were dropped are drawn again for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, epsilon: float, dropped: Dropped, x: Tensor, y: Tensor, *vectors: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        bias, weight, shift = vectors
        ctx.dropped, ctx.dtype = dropped, y.dtype
        made = kernels.add_normalise(x, y, bias, weight, shift, epsilon, dropped)
        ctx.save_for_backward(made.sum, made.moments, weight)
        # In fp32 both are one tensor, under two names so that each has a gradient of its own.
        return made.out, made.narrow.detach() if made.narrow is made.out else made.narrow

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor | None, grad_narrow: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad_out is None and grad_narrow is None:
            return (None,) * 7
        sums, moments, weight = ctx.saved_tensors
        given = kernels.Gradients(*(None if each is None else each.contiguous() for each in (grad_out, grad_narrow)))
        return None, None, *kernels.add_normalise_backward(given, ctx.dtype, sums, moments, weight, ctx.dropped)


class _AddNormalisedInGraph(torch.autograd.Function):
    """For the compiler, which fuses what is written here; backward by a kernel of ours, which sums the gradient of the
    bias in y too. In fp32 both outputs are one."""

    @staticmethod
    def forward(ctx: Any, epsilon: float, dropout: float, x: Tensor, y: Tensor, *vectors: Tensor) -> tuple[Tensor, ...]:
        _, weight, shift = vectors
        ctx.scale, ctx.dtype, bits = scale_of(dropout), y.dtype, []
        added = y.to(x.dtype)
        if dropout:
            bits = [kept_bits(x, threshold_of(dropout))]
            added = torch.where(are_kept(bits[0]), added * ctx.scale, 0.0)
        total = x + added
        variance, mean = torch.var_mean(total, 1, correction=0, keepdim=True)
        inverse = torch.rsqrt(variance + epsilon)
        normal = (total - mean) * inverse
        out = normal * weight + shift
        ctx.save_for_backward(normal, inverse, weight, *bits)
        return (out,) if y.dtype == x.dtype else (out, out.to(y.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_x, grad_y, sums = add_normalised_backward(list(grads), list(ctx.saved_tensors), ctx.scale, ctx.dtype)
        of_weight, of_shift, of_bias = sums.sum(0).unbind()
        return None, None, grad_x, grad_y, of_bias, of_weight, of_shift
