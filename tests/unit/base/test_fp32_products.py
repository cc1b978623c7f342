"""oneDNN makes fp32 products only on AMD processors, and only where they are exact; less than fp32 is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
import torch

from bertsmith.base import fp32_products, log
from bertsmith.base.errors import BertsmithError
from bertsmith.base.fp32_products import DEFAULT, ONEDNN, VARIABLE, choose_fp32_products, largest_error, suited_to
from bertsmith.base.processor import Processor
from made_processors import WITH_AMX, WITH_BF16_OF_AMD, WITHOUT_BF16

matmul = torch.backends.mkldnn.matmul


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing chosen or said before, the process's switch off, and then back where it was."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(log, "_said", set())
    before = matmul.fp32_precision
    matmul.fp32_precision = "none"
    largest_error.cache_clear()
    yield
    largest_error.cache_clear()
    matmul.fp32_precision = before


def on(monkeypatch: pytest.MonkeyPatch, processor: Processor, error: float = 0.2) -> None:
    """As if on such a processor, with such an error of oneDNN's products."""
    monkeypatch.setattr(fp32_products, "largest_error", lambda name: error)
    monkeypatch.setattr(fp32_products, "this_processor", lambda: processor)


@pytest.mark.parametrize("usual", [torch.float32, torch.float64])
def test_pytorchs_own_products_are_fp32(usual: torch.dtype) -> None:
    """Also in a program whose numbers are float64 where it names no dtype."""
    torch.set_default_dtype(usual)
    try:
        assert 0.01 < largest_error(DEFAULT) < 0.5
    finally:
        torch.set_default_dtype(torch.float32)
    assert matmul.fp32_precision == "none"


def cut(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Numbers with their last `bits` bits of mantissa set to zero, as units for smaller formats read them."""
    return (x.view(torch.int32) >> bits << bits).view(torch.float32)


@pytest.mark.parametrize(("what", "bits"), [("bf16", 16), ("tf32", 13)])
@pytest.mark.parametrize("place", range(len(fp32_products._CASES)))
def test_a_product_in_less_than_fp32_is_seen(monkeypatch, what: str, bits: int, place: int) -> None:
    """Whichever of the products it is, on the processors that oneDNN is chosen for."""
    cases = list(fp32_products._CASES)
    make, shapes = cases[place]

    def cut_down(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return make(a, b) if a.dtype == torch.float64 else make(cut(a, bits), cut(b, bits))

    cases[place] = (cut_down, shapes)
    monkeypatch.setattr(fp32_products, "_CASES", cases)
    assert largest_error(DEFAULT) > 30
    name, reason = suited_to(WITH_BF16_OF_AMD)
    assert name == DEFAULT
    assert "less than fp32" in reason


@pytest.mark.parametrize(
    ("processor", "name", "reason"),
    [
        (WITH_BF16_OF_AMD, ONEDNN, "faster on an AMD processor, and its error is that of fp32"),
        (WITH_AMX, DEFAULT, "oneDNN is faster on AMD processors only"),
        (WITHOUT_BF16, DEFAULT, "oneDNN is faster on AMD processors only"),
        (Processor("Linux", "x86_64", "AMD"), DEFAULT, "PyTorch hands fp32 products to oneDNN with AVX-512 only"),
    ],
)
def test_the_processor_decides_and_the_reason_is_logged(monkeypatch, said, processor, name: str, reason: str) -> None:
    on(monkeypatch, processor)
    assert choose_fp32_products() == name
    assert matmul.fp32_precision == ("bf16" if name == ONEDNN else "none")
    library = "oneDNN" if name == ONEDNN else "PyTorch's default"
    assert f"fp32 matrix products: {library} ({reason})" in said.messages
    fp32_products.use(DEFAULT)
    assert matmul.fp32_precision == "none"


@pytest.mark.parametrize("permitted", ["high", "medium"])
def test_the_default_is_fp32_whatever_a_program_has_permitted(monkeypatch, permitted: str) -> None:
    on(monkeypatch, WITH_AMX)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(permitted)
    try:
        assert choose_fp32_products() == DEFAULT
        assert matmul.fp32_precision == "none"
    finally:
        torch.set_float32_matmul_precision(before)


def test_it_can_be_switched_off_and_on(monkeypatch) -> None:
    on(monkeypatch, WITH_BF16_OF_AMD)
    monkeypatch.setenv(VARIABLE, "default")
    assert choose_fp32_products() == DEFAULT
    on(monkeypatch, WITH_AMX)
    monkeypatch.setenv(VARIABLE, "onednn")
    assert choose_fp32_products() == ONEDNN
    monkeypatch.setenv(VARIABLE, "mkl")
    with pytest.raises(BertsmithError, match="'mkl' is not a way to make fp32 products"):
        choose_fp32_products()
    monkeypatch.setenv(VARIABLE, "onednn")
    on(monkeypatch, WITH_AMX, error=700.0)
    with pytest.raises(BertsmithError, match="less than fp32 on this processor"):
        choose_fp32_products()


def test_a_resumed_run_keeps_what_it_was_started_with(monkeypatch, said) -> None:
    on(monkeypatch, WITH_AMX)
    assert choose_fp32_products(ONEDNN) == ONEDNN
    on(monkeypatch, WITH_BF16_OF_AMD)
    assert choose_fp32_products(DEFAULT) == DEFAULT
    assert not any("warning" in line for line in said.messages)
    on(monkeypatch, WITH_AMX, error=700.0)
    assert choose_fp32_products(ONEDNN) == DEFAULT
    assert "started with fp32 products by onednn and is resumed with default" in said.text


# A layer's products, forward and backward, both ways; run where oneDNN is told to leave matrix units for bf16 alone.
_PROGRAM = """
import torch
from bertsmith.base.device import choose_device
from bertsmith.base.fp32_products import DEFAULT, ONEDNN, largest_error, using
device = choose_device("cpu", "fp32")
assert device.facts() == {"device": "cpu", "precision": "fp32", "fp32_products": "onednn"}, device
x, layer = torch.randn(256, 192), torch.nn.Linear(192, 384)
sides = []
for name in (ONEDNN, DEFAULT):
    with using(name):
        layer.zero_grad()
        y = layer(x)
        y.square().sum().backward()
        sides.append((y.detach(), layer.weight.grad.clone()))
for ours, theirs in zip(*sides):
    assert float((ours - theirs).norm() / theirs.norm()) < 1e-6
assert largest_error(ONEDNN) < 0.5, largest_error(ONEDNN)
choose_device("cpu", "bf16")
assert torch.backends.mkldnn.matmul.fp32_precision == "none"
"""


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="PyTorch hands oneDNN fp32 products with AVX-512 only"
)
def test_products_by_onednn_are_those_of_the_default() -> None:
    environment = {**os.environ, VARIABLE: "onednn", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE", "ONEDNN_VERBOSE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    products = [line for line in done.stdout.splitlines() if ",matmul," in line and "256x192:192x384" in line]
    assert len(products) == 1, "the forward product was made by oneDNN once, and once by the default"


def test_blocks_of_two_threads_leave_each_other_alone_and_the_last_one_puts_back_what_was() -> None:
    """Whichever ends first."""
    for first_ends_first in (True, False):
        first, second = ExitStack(), ExitStack()
        for each in (first, second):
            each.enter_context(fp32_products.kept())
            fp32_products.use(ONEDNN)
        ends = (first, second) if first_ends_first else (second, first)
        ends[0].close()
        assert matmul.fp32_precision == "bf16", "the other one has begun with oneDNN"
        ends[1].close()
        assert matmul.fp32_precision == "none"
