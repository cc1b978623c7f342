"""The C++ kernels as a library of this process: compiled and loaded, or not there. Each thread may use them."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping
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


class _Here(threading.local):
    """Of this thread alone: a model that another one runs must give the same numbers whether or not this one trains,
    and its backward pass needs what its forward pass used."""

    uses_them = False


_here = _Here()


def load() -> None:
    """Has this thread use the kernels. They are compiled and loaded where they are not there yet, which takes a few
    seconds on a machine's first time, and stay for as long as the process lives.

    Raises NotCompiledError.
    """
    global _kernels
    if not _kernels:
        library = load_cpp(_SOURCE)
        names = {f"{name}_{suffix}": each for name, each in _SIGNATURES.items() for suffix in SUFFIXES.values()}
        pointers = {name: ctypes.c_void_p.in_dll(library, name).value or 0 for name in names}
        _kernels = {name: ctypes.CFUNCTYPE(None, *each)(pointers[name]) for name, each in names.items()}
    _here.uses_them = True


def unload() -> None:
    """Leaves everything in this thread to PyTorch's operators from now on."""
    _here.uses_them = False


def kernels() -> Mapping[str, Callable[..., None]]:
    """Those of this process, the same ones as long as they are not loaded anew; empty where none are."""
    return _kernels


def is_loaded() -> bool:
    """Whether this thread uses the kernels."""
    return _here.uses_them


def can_take(x: Tensor, *others: Tensor) -> bool:
    """Whether this thread uses the kernels and they can read these tensors: on the CPU, contiguous, the first one bf16
    or fp32."""
    if torch.compiler.is_compiling() or not _here.uses_them or x.dtype not in SUFFIXES:
        return False
    return all(each.device.type == "cpu" and each.is_contiguous() for each in (x, *others))


def call(name: str, dtype: torch.dtype, *arguments: Tensor | float | None) -> None:
    """Calls a kernel for numbers of a dtype. Tensors are passed by their addresses, None as null."""
    addresses = [each.data_ptr() if isinstance(each, Tensor) else each for each in arguments]
    _kernels[f"{name}_{SUFFIXES[dtype]}"](*addresses)
