"""Gradients of weights on a processor with matrix units: `weight_gradients.cpp`, compiled where it runs.

Of the three products of a linear map this is the one that libraries are slow at: oneDNN and MKL make a^T b of what lies
in a step's memory at half of the speed of a b (decision 010).

Legend: K terms of a sum, M rows, N columns.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import record_function

from bertsmith.base.compiled_cpp import NotCompiledError, load_cpp
from bertsmith.base.log import log_choice, warn

_SOURCE = Path(__file__).with_suffix(".cpp")
_at, _count = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES = {
    "ask_for_tiles": (_at,),
    "room_for": (_count, _count, _count, _at),
    "turned_product": (*[_at] * 4, _count, _count, _count),
}
_LINE = 64
_WHAT = "gradients of weights"
_library: ctypes.CDLL | None = None


def load() -> bool:
    """Compiles and loads them, once a process; whether they are there, which needs matrix units (Intel AMX)."""
    global _library
    if _library is not None or not _has_matrix_units():
        return _library is not None
    try:
        _library = load_cpp(_SOURCE, _SIGNATURES)
    except NotCompiledError as why:
        log_choice(_WHAT, "PyTorch's products", str(why))
        return False
    given = ctypes.c_int64()
    _library.ask_for_tiles(ctypes.byref(given))
    if not given.value:
        _library = None
        log_choice(_WHAT, "PyTorch's products", "the system does not lend this process the matrix units")
    elif not _is_right():
        _library = None
        warn("the C++ product for gradients of weights computes something else here than PyTorch does; it is not used")
    else:
        log_choice(_WHAT, "C++ for this processor's matrix units, in fp32", "PyTorch's take up to twice as long")
    return _library is not None


def is_loaded() -> bool:
    """Whether they are there."""
    return _library is not None


def unload() -> None:
    """Leaves these products to PyTorch from now on."""
    global _library
    _library = None


def can_take(a: Tensor, b: Tensor) -> bool:
    """Whether `turned_product` takes these: it is there, and both are on the CPU, bf16, laid whole and not empty."""
    if torch.compiler.is_compiling() or _library is None:
        return False
    return all(
        each.dtype == torch.bfloat16 and each.device.type == "cpu" and each.is_contiguous() and each.numel() > 0
        for each in (a, b)
    )


def turned_product(a: Tensor, b: Tensor) -> Tensor:
    """a^T b of bf16[K, M] and bf16[K, N] as fp32[M, N], summed in fp32; the same bits by any number of threads."""
    assert _library is not None, "can_take was not asked"
    (terms, rows), columns = a.shape, b.shape[1]
    out, size = a.new_empty(rows, columns, dtype=torch.float32), ctypes.c_int64()
    _library.room_for(rows, terms, columns, ctypes.byref(size))
    room = a.new_empty(size.value + _LINE, dtype=torch.uint8)
    first_line = -(-room.data_ptr() // _LINE) * _LINE
    with record_function("turned_product"):  # for a profiler, which knows PyTorch's operators alone
        _library.turned_product(a.data_ptr(), b.data_ptr(), out.data_ptr(), first_line, rows, terms, columns)
    return out


def _has_matrix_units() -> bool:
    cpu = Path("/proc/cpuinfo")
    return cpu.exists() and "amx_bf16" in cpu.read_text(encoding="utf-8", errors="replace")


def _is_right() -> bool:
    """Of whole numbers, whose sums are exact: with more terms than are packed at a time, and with odd shapes."""
    for terms, rows, columns in ((5000, 40, 33), (7, 3, 70)):
        a, b = ((torch.arange(terms * width) % 11 - 5.0).view(terms, width) for width in (rows, columns))
        if not torch.equal(turned_product(a.bfloat16(), b.bfloat16()), a.t() @ b):
            return False
    return True
