"""Matrix products of half-precision numbers on a CPU, asked for as they are made fastest (decision 010).

oneDNN, which PyTorch asks, makes some products of few columns on one of two threads, and takes nearly twice as long
for A^T B as for A B. Intel's MKL, which lies in PyTorch's wheels for x86, makes A^T B of bf16 numbers at full speed
where the processor has matrix units, and gives what it summed in fp32 as it is.

Legend: M rows, K what is summed over, N columns.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from bertsmith.base.log import choose, warn
from bertsmith.model import cpu_kernels

_ROW_MAJOR, _AS_IT_IS, _TURNED = 101, 111, 112
# For sums of fewer terms oneDNN is the faster one.
_MANY_TERMS = 512
_LARGEST = 2**31 - 1


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
    """a [K, M], turned, times b [K, N]: in fp32 where MKL makes it, else in their dtype."""
    # A narrow one costs less to turn than oneDNN is faster by.
    is_turned_fast = cpu_kernels.can_take(a) and a.shape[1] < b.shape[1]
    multiply = None if is_turned_fast or a.dtype != torch.bfloat16 or len(a) < _MANY_TERMS else _mkl()
    if multiply is not None and all(each.is_contiguous() and each.numel() <= _LARGEST for each in (a, b)):
        out = a.new_empty(a.shape[1], b.shape[1], dtype=torch.float32)
        multiply(a, b, out)
        return out
    if cpu_kernels.can_take(a):
        return multiplied(cpu_kernels.turned(a), b)
    # PyTorch's copy of one that is wider than b costs what it gains.
    return multiplied(a.t().contiguous() if a.shape[1] <= b.shape[1] else a.t(), b)


@cache
def _mkl() -> Callable[[Tensor, Tensor, Tensor], None] | None:
    """Writes a^T b to the fp32 matrix `out`; None where MKL is not there, or would have no matrix units to use."""
    cpu, library = Path("/proc/cpuinfo"), Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    if not (library.exists() and cpu.exists() and "amx_bf16" in cpu.read_text(encoding="utf-8", errors="replace")):
        return None
    gemm = getattr(ctypes.CDLL(str(library)), "cblas_gemm_bf16bf16f32", None)
    if gemm is None:
        return None
    whole, real, at = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
    gemm.argtypes = [*[whole] * 6, real, at, whole, at, whole, real, at, whole]
    gemm.restype = None

    def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
        rows, columns = out.shape
        given = (a.data_ptr(), rows, b.data_ptr(), columns, 0.0, out.data_ptr(), columns)
        gemm(_ROW_MAJOR, _TURNED, _AS_IT_IS, rows, columns, len(a), 1.0, *given)

    a, b, out = torch.arange(35.0).view(7, 5).bfloat16(), torch.arange(21.0).view(7, 3).bfloat16(), torch.empty(5, 3)
    multiply(a, b, out)
    if not torch.equal(out, a.float().t() @ b.float()):
        warn("MKL's product of bf16 numbers is wrong here; it is not used")
        return None
    choose("gradients of weights", "most by MKL, in fp32", "this processor has matrix units")
    return multiply
