"""Dropout on a CPU, by the C++ kernels where they are there, else with masks from numpy; PyTorch's own elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.library import can_take
from bertsmith.model.cpu.masks import Dropped, kept_places, scale_of


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """x with the probability 0, else scaled: as `torch.nn.functional.dropout`."""
    if not _is_ours(x, probability, training):
        return functional.dropout(x, probability, training)
    if x.ndim > 1 and x.numel() and can_take(x):
        out: Tensor = _DroppedByKernel.apply(x, Dropped.draw(probability))  # type: ignore[no-untyped-call]
    else:
        out = _Dropped.apply(x, probability)  # type: ignore[no-untyped-call]
    return out


def add_dropped(x: Tensor, y: Tensor, probability: float, training: bool) -> Tensor:
    """x + dropout(y), in the dtype of x, which is the wider one."""
    if not _is_ours(x, probability, training):
        return x + functional.dropout(y, probability, training)
    out: Tensor = _AddDropped.apply(x, y, probability)  # type: ignore[no-untyped-call]
    return out


def _is_ours(x: Tensor, probability: float, training: bool) -> bool:
    return training and probability > 0 and x.device.type == "cpu" and not torch.compiler.is_compiling()


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
