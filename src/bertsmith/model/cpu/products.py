"""Matrix products of half-precision numbers on a CPU, asked for as they are made fastest (decision 010).

oneDNN, which PyTorch asks, makes some products of few columns on one of two threads, makes x W^T + b in less time where
it is asked for a linear layer than for a product and a sum, and takes nearly twice as long for A^T B as for A B.

Legend: M rows, K what is summed over, N columns.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

from bertsmith.model.cpu import kernels as cpu_kernels
from bertsmith.model.cpu import weight_gradients


def mapped(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [M, K] times weight [N, K], turned, and bias [N] added, in their dtype."""
    columns, inner = weight.shape
    has_linear = torch.backends.mkldnn.enabled and _has_linear(x.dtype)
    if not len(x) or not has_linear or _leaves_a_thread_idle(len(x), inner, columns):
        return multiplied(x, weight.t(), bias)
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return out


@cache
def _has_linear(dtype: torch.dtype) -> bool:
    """Whether oneDNN can be asked for a linear layer, as PyTorch's own compiler asks it."""
    there = hasattr(torch.ops.mkldnn, "_linear_pointwise") and hasattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported")
    return there and dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def multiplied(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """a [M, K] times b [K, N], and bias [N] added, in their dtype."""
    if not _leaves_a_thread_idle(len(a), a.shape[1], b.shape[1]):
        return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
    out = a.new_empty(len(a), b.shape[1])
    for rows, part in zip(a.chunk(2), out.chunk(2), strict=True):
        if bias is None:
            torch.mm(rows, b, out=part)
        else:
            torch.addmm(bias, rows, b, out=part)
    return out


def _leaves_a_thread_idle(rows: int, inner: int, columns: int) -> bool:
    """Whether oneDNN makes a product of this shape on one of two threads, and its halves on both.

    Measured on matrix units, where halves take 0.55 of its time. It depends on nothing but shape and number of threads,
    so that a run that goes on gets the same bits.
    """
    if torch.get_num_threads() != 2 or not 512 <= columns < 1024 or not columns <= rows < 2 * columns:
        return False
    if inner > 3 * columns:
        return 4 * rows < 7 * columns
    return inner <= 2 * columns or 4 * rows != 7 * columns


def turned_product(a: Tensor, b: Tensor) -> Tensor:
    """a [K, M], turned, times b [K, N]: in fp32 where there is a kernel for it, else in their dtype."""
    if weight_gradients.can_take(a, b):
        return weight_gradients.turned_product(a, b)
    if cpu_kernels.can_take(a):
        return multiplied(cpu_kernels.turned(a), b)
    # PyTorch's copy of one that is wider than b costs what it gains.
    return multiplied(a.t().contiguous() if a.shape[1] <= b.shape[1] else a.t(), b)
