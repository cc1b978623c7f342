"""Dropout of hidden states: on a CPU by the C++ kernels where they are there, else with masks from numpy; in a compiled
step on a GPU with masks of ours, one bit a place; PyTorch's own elsewhere.

PyTorch's compiler draws a place by ten rounds of Philox, which give 128 bits, and uses 32 of them, so that a kernel
that sums and normalises seems to compute for longer than it waits for memory (decision 020). It keeps a byte a place
for the backward pass, too.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bertsmith.base import device
from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.library import can_take
from bertsmith.model.cpu.masks import Dropped, kept_places, scale_of, threshold_of
from bertsmith.model.triton.dropout import EIGHT, can_draw, kept_bits

MANY = 1 << 22
"""Places. With fewer, the two more kernels are expected to cost about what they save."""


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """x with the probability 0, else scaled: as `torch.nn.functional.dropout`."""
    out: Tensor
    if in_bits(x, probability, training):
        out = _DroppedInGraph.apply(x, probability)  # type: ignore[no-untyped-call]
    elif not _is_ours(x, probability, training):
        out = functional.dropout(x, probability, training)
    elif x.ndim > 1 and x.numel() and can_take(x):
        out = _DroppedByKernel.apply(x, Dropped.draw(probability))  # type: ignore[no-untyped-call]
    else:
        out = _Dropped.apply(x, probability)  # type: ignore[no-untyped-call]
    return out


def add_dropped(x: Tensor, y: Tensor, probability: float, training: bool) -> Tensor:
    """x + dropout(y), in the dtype of x, which is the wider one."""
    if in_bits(y, probability, training):
        return x + dropout(y.to(x.dtype), probability, training)
    if not _is_ours(x, probability, training):
        return x + functional.dropout(y, probability, training)
    out: Tensor = _AddDropped.apply(x, y, probability)  # type: ignore[no-untyped-call]
    return out


def _is_ours(x: Tensor, probability: float, training: bool) -> bool:
    return training and probability > 0 and x.device.type == "cpu" and not torch.compiler.is_compiling()


def in_bits(x: Tensor, probability: float, training: bool) -> bool:
    """Whether places of x are drawn as bits."""
    compiled = training and probability > 0 and torch.compiler.is_compiling()
    return compiled and x.numel() >= MANY and device.is_on_gpu(x) and can_draw(x.shape)


def are_kept(bits: Tensor) -> Tensor:
    """bool[..., H], from bits [..., H / 8]."""
    places = torch.arange(EIGHT, device=bits.device, dtype=torch.uint8)
    return ((bits[..., None] >> places) & 1).flatten(-2) > 0


def _factors(x: Tensor, probability: float) -> Tensor:
    """0 or the scale, in fp32 or wider: rounded to half precision the scale would be off by 0.2%."""
    wide = torch.promote_types(x.dtype, torch.float32)
    return kept_places(x.shape, probability, wide).mul_(scale_of(probability))


class _DroppedByKernel(torch.autograd.Function):
    """Dropout of places that are drawn again for the backward pass, which is dropout of the same places."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dropped: Dropped) -> Tensor:
        ctx.dropped = dropped
        return kernels.drop(x.contiguous(), dropped)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _DroppedByKernel.apply(gradient, ctx.dropped), None  # type: ignore[no-untyped-call]


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        factors = _factors(x, probability)
        ctx.save_for_backward(factors)
        return (x * factors).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (factors,) = ctx.saved_tensors
        return (gradient * factors).to(gradient.dtype), None


class _AddDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor, probability: float) -> Tensor:
        factors = _factors(x, probability)
        ctx.save_for_backward(factors)
        ctx.dtype = y.dtype
        return torch.addcmul(x, y.to(x.dtype), factors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        (factors,) = ctx.saved_tensors
        return gradient, (gradient * factors).to(ctx.dtype), None


class _DroppedInGraph(torch.autograd.Function):
    """Dropout of x [..., H] by bits. The two passes unpack them in different ways: if both did it in the same way, the
    compiler would keep the result, which is eight times as large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, probability: float) -> Tensor:
        bits = kept_bits(x, threshold_of(probability))
        ctx.save_for_backward(bits)
        ctx.scale = scale_of(probability)
        return torch.where(are_kept(bits), x * ctx.scale, 0.0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (bits,) = ctx.saved_tensors
        places = torch.arange(EIGHT, device=gradient.device, dtype=torch.uint8)
        kept = (bits[..., None] & (1 << places)).view(gradient.shape)
        return torch.where(kept > 0, gradient * ctx.scale, 0.0), None
