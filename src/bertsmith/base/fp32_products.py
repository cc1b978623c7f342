"""Which library makes the fp32 matrix products of a CPU: PyTorch's default, or oneDNN where it is faster and as exact.

PyTorch's default on x86 is MKL, which gives AMD processors about half of the rate that oneDNN reaches. PyTorch hands
fp32 products to oneDNN only with leave to make them in bf16 (`torch.backends.mkldnn.matmul.fp32_precision`). oneDNN
takes that leave where the processor has matrix units for bf16 (AMX), and elsewhere computes in fp32 as before. So what
comes out is compared with float64 before oneDNN is used. The switch is one for the whole process.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import choose, warn

DEFAULT, ONEDNN = "default", "onednn"
VARIABLE = "BERTSMITH_FP32_PRODUCTS"
"""The environment variable that switches the choice off: auto (the default), default or onednn."""

_backend: Any = torch.backends.mkldnn

# What oneDNN must be faster by to be worth results that differ in the last bits from those of other PyTorch programs.
_WORTH_IT = 1.1
_SETTINGS = {DEFAULT: "none", ONEDNN: "bf16"}


def choose_fp32_products(begun_with: str = "") -> str:
    """Uses the faster library for fp32 products on a CPU from here on, says which and why, and gives its name.

    begun_with: what a run that goes on was begun with, kept if it can be: the other library rounds otherwise.
    Raises BertsmithError for an unknown value of `BERTSMITH_FP32_PRODUCTS`, and where it asks for oneDNN and oneDNN
    does not compute in fp32 here.
    """
    asked = os.environ.get(VARIABLE, "auto")
    if asked not in ("auto", DEFAULT, ONEDNN):
        raise BertsmithError(f"'{asked}' is no way to make fp32 products", VARIABLE, "use auto, default or onednn")
    name, reason = _asked_for(asked) if asked != "auto" else _begun(begun_with) if begun_with else fastest()
    if begun_with and name != begun_with:
        warn(
            f"this run was begun with fp32 products by {begun_with} and goes on with {name} ({reason}); "
            "its figures will be close to those of an unbroken run, and not equal"
        )
    choose("fp32 matrix products", "oneDNN" if name == ONEDNN else "PyTorch's default", reason)
    use(name)
    return name


def use(name: str) -> None:
    """Switches the whole process to "default" or "onednn", unasked whether it is exact."""
    if _switched() or name != DEFAULT:
        _backend.matmul.fp32_precision = _SETTINGS[name]


@contextmanager
def using(name: str) -> Iterator[None]:
    """`use` as long as the block runs."""
    before = _backend.matmul.fp32_precision
    _backend.matmul.fp32_precision = _SETTINGS[name]
    try:
        yield
    finally:
        _backend.matmul.fp32_precision = before


@cache
def fastest() -> tuple[str, str]:
    """(name, reason) by measurement: some 50 ms, once a process. The switch is left as it was."""
    if not _backend.is_available():
        return DEFAULT, "this PyTorch has no oneDNN"
    error = largest_error(ONEDNN)
    if error > 1:
        return (
            DEFAULT,
            f"oneDNN would compute in less than fp32 here: its error is {error:,.0f}x what rounding explains",
        )
    ratio = onednn_speed_ratio()
    reason = f"oneDNN runs at {ratio:.2f}x its speed, with an error that is fp32's"
    return (ONEDNN if ratio > _WORTH_IT else DEFAULT), reason


def largest_error(name: str) -> float:
    """How far fp32 products lie from float64, as a multiple of what fp32 rounding explains: under 1 if they are fp32.

    Over the products of a layer's forward and backward, attention's batched ones, and small odd shapes. Rounding
    explains a relative error of eps sqrt(K) in a sum of K terms; bf16 exceeds it 700-fold and more, tf32 80-fold.
    """
    with using(name):
        return max(_error(make, *shapes) for make, shapes in _CASES)


@cache
def onednn_speed_ratio() -> float:
    """How many times faster oneDNN makes an fp32 product of 512 x 512 matrices than PyTorch's default."""

    def by(name: str) -> Callable[[], Any]:
        a, b = torch.ones(512, 512), torch.ones(512, 512)

        def product() -> None:
            with using(name):
                functional.linear(a, b)

        return product

    default, onednn = fastest_in_turns([by(DEFAULT), by(ONEDNN)])
    return default / onednn


def fastest_in_turns(works: Sequence[Callable[[], Any]], turns: int = 12) -> list[float]:
    """The CPU seconds of the fastest run of each, on one thread and in turns: a busy machine slows all alike."""
    best = [math.inf] * len(works)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(turns):
            for place, work in enumerate(works):
                start = time.thread_time()
                work()
                best[place] = min(best[place], time.thread_time() - start)
    finally:
        torch.set_num_threads(threads)
    return best


def _asked_for(name: str) -> tuple[str, str]:
    if name == ONEDNN and largest_error(ONEDNN) > 1:
        fix = f"unset it, or use {VARIABLE}=default; --precision bf16 is the way to less than fp32"
        raise BertsmithError("oneDNN computes fp32 products in less than fp32 on this processor", VARIABLE, fix)
    return name, f"{VARIABLE} says so"


def _begun(name: str) -> tuple[str, str]:
    if name == ONEDNN and largest_error(ONEDNN) > 1:
        return DEFAULT, "oneDNN computes in less than fp32 on this processor"
    return name, "this run was begun with it"


def _switched() -> bool:
    return bool(_backend.matmul.fp32_precision == _SETTINGS[ONEDNN])


def _error(make: Callable[[Tensor, Tensor], Tensor], first: tuple[int, ...], second: tuple[int, ...]) -> float:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(shape, generator=generator) for shape in (first, second))
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
