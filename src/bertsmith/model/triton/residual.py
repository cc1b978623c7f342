"""The backward pass of what ends half a block in a compiled step on a GPU, in one visit to memory.

PyTorch's compiler has a kernel for it too, and one more that reads what the first has written for the gradient of the
linear map's bias; it leaves four times as many partial sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bertsmith.base.device import made_current
from bertsmith.model.triton import HAS_TRITON

GROUP = 64
"""Rows whose sums are one row of the partial sums; slots of a compiled step are a multiple."""
WIDEST = 4096
_COLUMNS = 128
"""Of a warp. A thread has four, so that 64 registers suffice, and 512 programs for rows of 1,024 run at once on an
H100."""


def can_run(x: Tensor) -> bool:
    """Whether the kernel is there and takes x [T, H]."""
    return HAS_TRITON and x.ndim == 2 and len(x) % GROUP == 0 and x.shape[1] <= WIDEST


@torch.library.custom_op("bertsmith::add_normalised_backward", mutates_args=())
def add_normalised_backward(
    gradients: list[Tensor], saved: list[Tensor], scale: float, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x and of y, in the dtype of y, for LayerNorm of x + dropout(y), [T, H]; and fp32[T / GROUP, 3,
    H], what each group of rows adds to those of LayerNorm's weight and bias and of a bias in y.

    gradients: one or two, whose sum is that of the output. saved: x + dropout(y) normalised, its inverted deviations
    fp32[T, 1], LayerNorm's weight, and with dropout the bits of what is kept and is multiplied by `scale`.
    """
    from bertsmith.model.triton import kernels

    normal, inverse, weight, *bits = (each.contiguous() for each in saved)
    first, *more = (each.contiguous() for each in gradients)
    grad_x, grad_y, sums = _empty_results(normal, dtype)
    how = columns_of(normal.shape[1]) | {"GROUP": GROUP, "MORE": bool(more), "DROPS": bool(bits)}
    given = (first, (more or [first])[0], normal, inverse, weight, (bits or [first])[0])
    with made_current(normal.device):
        kernels.add_normalised_backward[(len(sums),)](*given, grad_x, grad_y, sums, scale, normal.shape[1], **how)
    return grad_x, grad_y, sums


def columns_of(width: int) -> dict[str, int]:
    """What the kernel runs with for rows of a width."""
    columns = 1 << (width - 1).bit_length()
    return {"C": columns, "num_warps": max(columns // _COLUMNS, 1)}


def _empty_results(normal: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    grad_x = torch.empty_like(normal, memory_format=torch.contiguous_format)
    sums = normal.new_empty(len(normal) // GROUP, 3, normal.shape[1])
    return grad_x, torch.empty_like(grad_x, dtype=dtype), sums


@add_normalised_backward.register_fake
def _(gradients: list[Tensor], saved: list[Tensor], scale: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_results(saved[0], dtype)
