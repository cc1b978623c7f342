"""oneDNN makes fp32 products only where it is faster and its products are fp32's; less than fp32 is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

from bertsmith.base import fp32_products, log
from bertsmith.base.errors import BertsmithError
from bertsmith.base.fp32_products import DEFAULT, ONEDNN, VARIABLE, choose_fp32_products, fastest, largest_error

matmul = torch.backends.mkldnn.matmul


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing chosen or said before, and the process's switch back where it was."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(log, "_said", set())
    fastest.cache_clear()
    before = matmul.fp32_precision
    yield
    matmul.fp32_precision = before
    fastest.cache_clear()


def exact(monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """A processor on which oneDNN computes in fp32, `ratio` times as fast as PyTorch's default."""
    monkeypatch.setattr(fp32_products, "largest_error", lambda name: 0.2)
    monkeypatch.setattr(fp32_products, "onednn_speed_ratio", lambda: ratio)


def test_pytorchs_own_products_are_fp32() -> None:
    assert 0.01 < largest_error(DEFAULT) < 0.5
    assert matmul.fp32_precision == "none"


def cut(x: torch.Tensor, bits: int) -> torch.Tensor:
    """Numbers with their last `bits` bits of mantissa set to zero, as units for smaller formats read them."""
    return (x.view(torch.int32) >> bits << bits).view(torch.float32)


@pytest.mark.parametrize(("what", "bits"), [("bf16", 16), ("tf32", 13)])
@pytest.mark.parametrize("place", range(len(fp32_products._CASES)))
def test_a_product_in_less_than_fp32_is_seen(monkeypatch, what: str, bits: int, place: int) -> None:
    """Whichever of the products it is, and however fast."""
    cases = list(fp32_products._CASES)
    make, shapes = cases[place]

    def cut_down(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return make(a, b) if a.dtype == torch.float64 else make(cut(a, bits), cut(b, bits))

    cases[place] = (cut_down, shapes)
    monkeypatch.setattr(fp32_products, "_CASES", cases)
    monkeypatch.setattr(fp32_products, "onednn_speed_ratio", lambda: 10.0)
    assert largest_error(DEFAULT) > 30
    name, reason = fastest()
    assert name == DEFAULT
    assert "less than fp32" in reason


@pytest.mark.parametrize(("ratio", "name"), [(0.9, DEFAULT), (1.05, DEFAULT), (1.5, ONEDNN)])
def test_the_faster_one_is_used_and_told(monkeypatch, caplog, ratio: float, name: str) -> None:
    monkeypatch.setattr(log.logger, "propagate", True)
    caplog.set_level("INFO", logger="bertsmith")
    exact(monkeypatch, ratio)
    assert choose_fp32_products() == name
    assert matmul.fp32_precision == ("bf16" if name == ONEDNN else "none")
    told = "oneDNN" if name == ONEDNN else "PyTorch's default"
    assert f"fp32 matrix products: {told} (oneDNN runs at {ratio:.2f}x its speed" in caplog.text
    fp32_products.use(DEFAULT)
    assert matmul.fp32_precision == "none"


def test_it_can_be_switched_off_and_on(monkeypatch) -> None:
    exact(monkeypatch, 5.0)
    monkeypatch.setenv(VARIABLE, "default")
    assert choose_fp32_products() == DEFAULT
    exact(monkeypatch, 0.5)
    monkeypatch.setenv(VARIABLE, "onednn")
    assert choose_fp32_products() == ONEDNN
    monkeypatch.setenv(VARIABLE, "mkl")
    with pytest.raises(BertsmithError, match="'mkl' is no way to make fp32 products"):
        choose_fp32_products()
    monkeypatch.setenv(VARIABLE, "onednn")
    monkeypatch.setattr(fp32_products, "largest_error", lambda name: 700.0)
    with pytest.raises(BertsmithError, match="less than fp32 on this processor"):
        choose_fp32_products()


def test_a_run_goes_on_with_what_it_was_begun_with(monkeypatch, caplog) -> None:
    monkeypatch.setattr(log.logger, "propagate", True)
    exact(monkeypatch, 0.5)
    assert choose_fp32_products(ONEDNN) == ONEDNN
    exact(monkeypatch, 5.0)
    assert choose_fp32_products(DEFAULT) == DEFAULT
    assert not caplog.text
    monkeypatch.setattr(fp32_products, "largest_error", lambda name: 700.0)
    assert choose_fp32_products(ONEDNN) == DEFAULT
    assert "begun with fp32 products by onednn and goes on with default" in caplog.text


# A layer's products, forward and backward, both ways; run where oneDNN is told to leave matrix units for bf16 alone.
_PROGRAM = """
import torch
from bertsmith.base.device import choose_device
from bertsmith.base.fp32_products import DEFAULT, ONEDNN, fastest, largest_error, using
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
