"""The backward pass of GELU in a compiled step on a GPU, which sums the gradient of the bias before it on its way.

PyTorch's compiler has one kernel for both too, which took 1.7 times as long on an H200 (decision 020).
"""

from __future__ import annotations

import torch
from torch import Tensor

from bertsmith.base.device import made_current
from bertsmith.model.triton import HAS_TRITON

GROUP = 128
"""Rows whose sum is one row of the partial sums; slots of a compiled step are a multiple."""
HOW = {"R": 16, "C": 128, "num_warps": 4}
"""Rows and columns of a block: of twelve ways on an H200 one of the fastest by tanh, and the fastest by erf."""


def can_run(x: Tensor) -> bool:
    """Whether the kernel is there and takes x [T, W]: a GPU numbers blocks along a second axis, as groups are, in 16
    bits."""
    return HAS_TRITON and x.ndim == 2 and len(x) % GROUP == 0 and len(x) // GROUP < 2**16


@torch.library.custom_op("bertsmith::gelu_backward", mutates_args=())
def gelu_backward(grad_out: Tensor, x: Tensor, by_tanh: bool) -> tuple[Tensor, Tensor]:
    """The gradient of GELU's input x [T, W], and the sums of its groups of rows: fp32[T / GROUP, W]."""
    from bertsmith.model.triton import kernels

    grad_out, x = grad_out.contiguous(), x.contiguous()
    grad_x, sums = _empty_results(x)
    grid = (-(-x.shape[1] // HOW["C"]), len(sums))
    with made_current(x.device):
        kernels.gelu_backward[grid](grad_out, x, grad_x, sums, x.shape[1], GROUP=GROUP, TANH=by_tanh, **HOW)
    return grad_x, sums


def _empty_results(x: Tensor) -> tuple[Tensor, Tensor]:
    empty = torch.empty_like(x, memory_format=torch.contiguous_format)
    return empty, x.new_empty(len(x) // GROUP, x.shape[1], dtype=torch.float32)


@gelu_backward.register_fake
def _(grad_out: Tensor, x: Tensor, by_tanh: bool) -> tuple[Tensor, Tensor]:
    return _empty_results(x)
