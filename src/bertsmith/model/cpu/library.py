"""The C++ kernels as a library of this process: compiled and loaded, or not there."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from bertsmith.model.cpu.compiled_cpp import load_cpp

_SOURCE = Path(__file__).with_name("kernels.cpp")
_at, _count, _real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_dropped = (ctypes.c_uint64, ctypes.c_uint32)
_SIGNATURES = {
    "add_normalise": (*[_at] * 9, _count, _count, _real, *_dropped, _real),
    "add_normalise_backward": (*[_at] * 8, _count, _count, *_dropped, _real),
    "drop": (_at, _at, _count, _count, *_dropped, _real),
    "softmax": (_at, _at, _at, _count, _count, _count, *_dropped),
    "softmax_backward": (_at, _at, _at, _count, _count),
    "gelu_backward": (*[_at] * 4, _count, _count),
    "gelu_tanh_backward": (*[_at] * 4, _count, _count),
    "relu_backward": (*[_at] * 4, _count, _count),
    "cross_entropy": (*[_at] * 5, _count, _count),
}
SUFFIXES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
"""The kinds of numbers that there are kernels for."""

_kernels: dict[str, Callable[..., None]] = {}


def load() -> None:
    """Compiles and loads the kernels, which takes a few seconds on a machine's first time.

    Raises NotCompiledError.
    """
    global _kernels
    library = load_cpp(_SOURCE)
    names = {f"{name}_{suffix}": each for name, each in _SIGNATURES.items() for suffix in SUFFIXES.values()}
    pointers = {name: ctypes.c_void_p.in_dll(library, name).value or 0 for name in names}
    _kernels = {name: ctypes.CFUNCTYPE(None, *each)(pointers[name]) for name, each in names.items()}


def unload() -> None:
    """Leaves everything to PyTorch's operators from now on."""
    global _kernels
    _kernels = {}


def is_loaded() -> bool:
    """Whether the kernels are there."""
    return bool(_kernels)


def can_take(x: Tensor, *others: Tensor) -> bool:
    """Whether the kernels are there and can read these tensors: on the CPU, contiguous, the first one bf16 or fp32."""
    if torch.compiler.is_compiling() or not _kernels or x.dtype not in SUFFIXES:
        return False
    return all(each.device.type == "cpu" and each.is_contiguous() for each in (x, *others))


def call(name: str, dtype: torch.dtype, *arguments: Tensor | float | None) -> None:
    """Calls a kernel for numbers of a dtype. Tensors are passed by their addresses, None as null."""
    assert _kernels, "can_take says that there are none"
    addresses = [each.data_ptr() if isinstance(each, Tensor) else each for each in arguments]
    _kernels[f"{name}_{SUFFIXES[dtype]}"](*addresses)
