"""The library for fp32 matrix products on a CPU: PyTorch's default, or oneDNN on AMD processors where it is exact.

PyTorch's default on x86 is MKL, which is slower than oneDNN on AMD processors (decision 011). PyTorch hands fp32
products to oneDNN only with permission to make them in bf16 (`torch.backends.mkldnn.matmul.fp32_precision`).
oneDNN makes use of that where the processor has matrix units for bf16 (AMX), and elsewhere computes in fp32 as before.
So its products are compared with float64 before it is used. The switch applies to the whole process.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import log_choice, warn
from bertsmith.base.processor import Processor, this_processor

DEFAULT, ONEDNN = "default", "onednn"
VARIABLE = "BERTSMITH_FP32_PRODUCTS"
"""The environment variable that overrides the choice: auto (no override), default or onednn."""

_backend: Any = torch.backends.mkldnn

_SETTINGS = {DEFAULT: "none", ONEDNN: "bf16"}
# What permits less than fp32; `torch.set_float32_matmul_precision` may have given it, for processors with AMX.
_LESS = ("bf16", "tf32")
# What each block of `kept` puts back, in the order in which they began.
_kept: list[list[Any]] = []
_kept_lock = threading.Lock()


def choose_fp32_products(of_run: str = "") -> str:
    """Chooses the library for fp32 products on a CPU, uses it from here on, logs the reason, and returns its name.

    of_run: what a resumed run was started with; it is kept if possible, as the other library rounds differently.
    Raises BertsmithError for an unknown value of `BERTSMITH_FP32_PRODUCTS`, and where it names oneDNN and oneDNN does
    not compute in fp32 here.
    """
    setting = os.environ.get(VARIABLE, "auto")
    if setting not in ("auto", DEFAULT, ONEDNN):
        raise BertsmithError(f"'{setting}' is not a way to make fp32 products", VARIABLE, "use auto, default or onednn")
    if setting != "auto":
        name, reason = _as_set(setting)
    else:
        name, reason = _as_started(of_run) if of_run else suited_to(this_processor())
    if of_run and name != of_run:
        warn(
            f"this run was started with fp32 products by {of_run} and is resumed with {name} ({reason}); "
            "its figures will be close to those of an uninterrupted run, but not equal"
        )
    log_choice("fp32 matrix products", "oneDNN" if name == ONEDNN else "PyTorch's default", reason)
    use(name)
    return name


def use(name: str) -> None:
    """Switches the whole process to "default" or "onednn", without checking whether it is exact."""
    if name != DEFAULT or _backend.matmul.fp32_precision in _LESS:
        _backend.matmul.fp32_precision = _SETTINGS[name]


@contextmanager
def using(name: str) -> Iterator[None]:
    """Like `use`, but only for the block."""
    before = _backend.matmul.fp32_precision
    _backend.matmul.fp32_precision = _SETTINGS[name]
    try:
        yield
    finally:
        _backend.matmul.fp32_precision = before


@contextmanager
def kept() -> Iterator[None]:
    """When the block ends, this process makes fp32 products as before it, on a CPU and on a GPU. Of blocks in several
    threads, one that ends before a later one leaves this to it, and so does not change its products midway."""
    cpu, gpu = _backend.matmul, torch.backends.cuda.matmul
    with _kept_lock:
        before = [cpu.fp32_precision, gpu.fp32_precision == "tf32"]
        _kept.append(before)
    try:
        yield
    finally:
        with _kept_lock:
            place = next(number for number, each in enumerate(_kept) if each is before)
            del _kept[place]
            if place < len(_kept):
                _kept[place][:] = before
            else:
                _put_back(*before)


def _put_back(precision: str, cut: bool) -> None:
    """Only what has changed: what was read may be a setting for all kinds of products."""
    cpu, gpu = _backend.matmul, torch.backends.cuda.matmul
    if cpu.fp32_precision != precision:
        cpu.fp32_precision = precision
    if (gpu.fp32_precision == "tf32") != cut:
        gpu.allow_tf32 = cut


def has_onednn() -> bool:
    """Whether this PyTorch was built with oneDNN."""
    return bool(_backend.is_available())


def suited_to(processor: Processor) -> tuple[str, str]:
    """(name, reason): oneDNN on an AMD processor where it computes in fp32, elsewhere PyTorch's default.

    Depends on the processor alone, not on a measurement of speed: two runs of one seed must make the same choice.
    """
    if not has_onednn():
        return DEFAULT, "this PyTorch has no oneDNN"
    if processor.vendor != "AMD":
        return DEFAULT, "oneDNN is faster on AMD processors only"
    if not processor.has("avx512"):
        return DEFAULT, _without_avx512(processor)
    error = largest_error(ONEDNN)
    if error > 1:
        return DEFAULT, f"oneDNN computes in less than fp32 here: its error is {error:,.0f}x what rounding explains"
    return ONEDNN, "faster on an AMD processor, and its error is that of fp32"


def _without_avx512(processor: Processor) -> str:
    why = f", which {' and '.join(processor.limits)} rules out" if processor.limits else ""
    return f"PyTorch hands fp32 products to oneDNN with AVX-512 only{why}"


@cache
def largest_error(name: str) -> float:
    """How far fp32 products are from float64, as a multiple of what fp32 rounding explains: below 1 if they are fp32.

    Over the products of a layer's forward and backward, attention's batched ones, and small odd shapes. Rounding
    explains a relative error of eps sqrt(K) in a sum of K terms; bf16 exceeds it 700-fold and more, tf32 80-fold.
    Found out once in a process: the processor stays, and the libraries read their variables when they start.
    """
    with using(name):
        return max(_error(make, *shapes) for make, shapes in _CASES)


def _as_set(name: str) -> tuple[str, str]:
    if name == ONEDNN and largest_error(ONEDNN) > 1:
        fix = f"unset it, or use {VARIABLE}=default; --precision bf16 is the way to less than fp32"
        raise BertsmithError("oneDNN computes fp32 products in less than fp32 on this processor", VARIABLE, fix)
    return name, f"{VARIABLE} is set"


def _as_started(name: str) -> tuple[str, str]:
    if name == ONEDNN and largest_error(ONEDNN) > 1:
        return DEFAULT, "oneDNN computes in less than fp32 on this processor"
    return name, "this run was started with it"


def _error(make: Callable[[Tensor, Tensor], Tensor], first: tuple[int, ...], second: tuple[int, ...]) -> float:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator, dtype=torch.float32) for shape in (first, second))
    exact = make(a.double(), b.double())
    error = float((make(a, b).double() - exact).norm() / exact.norm())
    terms = a.numel() * b.numel() / exact.numel()
    depth = math.sqrt(terms / (first[0] if len(first) == 3 else 1))
    return error / (torch.finfo(torch.float32).eps * math.sqrt(depth))


_Case = tuple[Callable[[Tensor, Tensor], Tensor], tuple[tuple[int, ...], tuple[int, ...]]]
_CASES: Sequence[_Case] = (
    (functional.linear, ((512, 768), (512, 768))),
    (torch.mm, ((512, 512), (512, 768))),
    (lambda a, b: a.t() @ b, ((512, 256), (512, 768))),
    (torch.bmm, ((12, 96, 64), (12, 64, 96))),
    (functional.linear, ((33, 65), (7, 65))),
)
