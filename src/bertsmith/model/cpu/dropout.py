"""Dropout whose random numbers are cheap on a CPU, where PyTorch draws them one by one, at 5 ns each.

A mask is 16 bits of a fast stream for each place (SFC64 of numpy), at a fifteenth of that. The stream's key is drawn
from PyTorch's own generator, so seeds, checkpoints and recomputed blocks work as ever. The probability is rounded to a
multiple of 2**-16, and what is kept is scaled by the rounded one, so the expected value is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

_LEVELS = 1 << 16
# The bits of 1.0 in the dtypes of two bytes.
_ONE = {torch.bfloat16: np.uint16(0x3F80), torch.float16: np.uint16(0x3C00)}


def threshold_of(probability: float) -> int:
    """The probability in parts of 2**16: a place is dropped where its 16 bits are less."""
    return min(round(probability * _LEVELS), _LEVELS - 1)


def scale_of(probability: float) -> float:
    """What is kept is multiplied by this, so that the expected value stays."""
    return _LEVELS / (_LEVELS - threshold_of(probability))


def draw_key() -> int:
    """What a mask is a function of: 63 bits from PyTorch's default generator."""
    return int(torch.empty((), dtype=torch.int64).random_())


def kept_places(shape: Sequence[int], probability: float, dtype: torch.dtype) -> Tensor:
    """A tensor on the CPU: 0 with the probability, else 1. Draws its key from PyTorch's default generator."""
    count = math.prod(shape)
    words = np.random.Generator(np.random.SFC64(draw_key())).integers(0, 2**64, size=-(-count // 4), dtype=np.uint64)
    bits = words.view(np.uint16)[:count]
    threshold = np.uint16(threshold_of(probability))
    if dtype not in _ONE:
        return torch.from_numpy(np.greater_equal(bits, threshold)).to(dtype).view(*shape)
    places = np.empty(count, np.uint16)
    np.greater_equal(bits, threshold, out=places, casting="unsafe")
    places *= _ONE[dtype]
    return torch.from_numpy(places).view(dtype).view(*shape)


def dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """x with the probability 0, else scaled: as `torch.nn.functional.dropout`."""
    if not _is_ours(x, probability, training):
        return functional.dropout(x, probability, training)
    out: Tensor = _Dropped.apply(x, probability)  # type: ignore[no-untyped-call]
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


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, probability: float) -> Tensor:  # type: ignore[no-untyped-def]
        factors = _factors(x, probability)
        ctx.save_for_backward(factors)
        return (x * factors).to(x.dtype)

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[no-untyped-def]
        (factors,) = ctx.saved_tensors
        return (gradient * factors).to(gradient.dtype), None


class _AddDropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, y: Tensor, probability: float) -> Tensor:  # type: ignore[no-untyped-def]
        factors = _factors(x, probability)
        ctx.save_for_backward(factors)
        ctx.dtype = y.dtype
        return torch.addcmul(x, y.to(x.dtype), factors)

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[no-untyped-def]
        (factors,) = ctx.saved_tensors
        return gradient, (gradient * factors).to(ctx.dtype), None
