"""The C++ product for gradients of weights, on a processor that has matrix units, against float64.

Legend: K terms of a sum, M rows, N columns.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertsmith.model.cpu import kernels as cpu_kernels
from bertsmith.model.cpu import weight_gradients
from bertsmith.model.cpu.weight_gradients import can_take, turned_product
from made_kernels import plant, threads

many_shapes = settings(deadline=None, max_examples=150)
WIDTHS = st.integers(1, 70) | st.sampled_from([96, 128, 200, 800])
TERMS = st.integers(1, 70) | st.sampled_from([256, 257, 1000, 2047, 2048, 2049, 4100])
# More packed terms, fewer blocks at a time; and blocks that are packed in several runs.
LARGE = [(2040, 900, 40), (100, 1700, 33), (2049, 40, 900)]


@pytest.fixture
def tiles(kernels: None) -> None:
    """Loads the product; skips where the processor has no matrix units."""
    if not weight_gradients._has_matrix_units():
        pytest.skip("this processor has no matrix units")
    assert weight_gradients.load()


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def check(a: Tensor, b: Tensor, found: Tensor) -> None:
    exact = a.double().t() @ b.double()
    assert (found.dtype, found.shape) == (torch.float32, exact.shape)
    size = a.double().norm(dim=0)[:, None] * b.double().norm(dim=0)
    assert bool(((found.double() - exact).abs() <= 1e-6 * size * max(1, math.sqrt(len(a)) / 16)).all())


@pytest.mark.usefixtures("tiles", "marked_memory")
@many_shapes
@given(TERMS, WIDTHS, WIDTHS, st.integers(0, 99), st.integers(1, 5))
def test_it_is_that_of_float64_and_the_same_by_any_number_of_threads(
    terms: int, rows: int, columns: int, seed: int, count: int
) -> None:
    a, b = draw(seed, terms, rows), draw(seed + 1, terms, columns)
    with threads(1):
        alone = turned_product(a, b)
    with threads(count):
        found = turned_product(a, b)
    check(a, b, found)
    assert torch.equal(found, alone)


@pytest.mark.usefixtures("tiles", "marked_memory")
@pytest.mark.parametrize("shape", LARGE, ids=str)
@pytest.mark.parametrize("count", [1, 2, 6])
def test_large_ones_too(shape: tuple[int, int, int], count: int) -> None:
    terms, rows, columns = shape
    a, b = draw(1, terms, rows), draw(2, terms, columns)
    with threads(count):
        check(a, b, turned_product(a, b))


@pytest.mark.usefixtures("tiles", "marked_memory")
@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_stays_in_its_row_and_column(strange: float) -> None:
    a, b = draw(1, 77, 45), draw(2, 77, 50)
    whole = turned_product(a, b)
    a[76, 44] = b[40, 7] = strange
    found = turned_product(a, b)
    assert not found[44].isfinite().any()
    assert not found[:, 7].isfinite().any()
    assert torch.equal(found[:44, 8:], whole[:44, 8:])


@pytest.mark.usefixtures("tiles", "marked_memory")
@many_shapes
@given(TERMS, WIDTHS, WIDTHS, st.data())
def test_a_sum_does_not_depend_on_those_beside_it(terms: int, rows: int, columns: int, data: st.DataObject) -> None:
    a, b = draw(1, terms, rows), draw(2, terms, columns)
    row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, columns - 1))
    alone = turned_product(a[:, row : row + 1].contiguous(), b[:, column : column + 1].contiguous())
    assert torch.equal(turned_product(a, b)[row, column], alone[0, 0])


@pytest.mark.usefixtures("tiles")
def test_the_default_dtype_is_nothing_to_it() -> None:
    a, b = draw(1, 8, 6), draw(2, 8, 7)
    expected = turned_product(a, b)
    torch.set_default_dtype(torch.float64)
    try:
        found = turned_product(a, b)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


@pytest.mark.usefixtures("tiles")
def test_it_takes_what_it_can_read() -> None:
    a = draw(1, 8, 6)
    assert can_take(a, a)
    assert not can_take(a, a.float())
    assert not can_take(a.t(), a)
    assert not can_take(a[:0], a[:0])
    assert not can_take(a[:, :0], a)
    assert not can_take(a, a.to("meta"))
    weight_gradients._library = None
    assert not can_take(a, a)


def about_gradients(said: pytest.LogCaptureFixture) -> list[str]:
    return [line for line in said.messages if "gradients of weights" in line]


def test_that_it_is_used_is_said(tiles: None, said: pytest.LogCaptureFixture) -> None:
    weight_gradients._library = None
    assert weight_gradients.load()
    assert about_gradients(said) == [
        "gradients of weights: C++ for this processor's matrix units, in fp32 (PyTorch's take up to twice as long)"
    ]


def test_a_processor_without_matrix_units_compiles_nothing(
    said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pathlib.Path.read_text", lambda *_, **__: "flags: avx512f")
    monkeypatch.setattr(weight_gradients, "load_cpp", None)
    assert not weight_gradients.load()
    assert not about_gradients(said)


def test_what_cannot_be_compiled_is_said(said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_gradients, "_has_matrix_units", lambda: True)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not weight_gradients.load()
    (line,) = about_gradients(said)
    assert line.startswith("gradients of weights: PyTorch's products (no C++ compiler was found")


def test_a_system_that_lends_no_matrix_units_is_said(
    tiles: None, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def ask_for_tiles(self, given: object) -> None:
            """Leaves `given` at 0."""

    weight_gradients._library = None
    monkeypatch.setattr(weight_gradients, "load_cpp", lambda *_: Refusing())
    assert not weight_gradients.load()
    assert not can_take(draw(1, 8, 6), draw(1, 8, 6))
    assert about_gradients(said) == [
        "gradients of weights: PyTorch's products (the system does not lend this process the matrix units)"
    ]


FAULTS = {
    "the last terms are left out": (
        "count = std::min(plan.steps * SIDE, terms - from)",
        "count = std::min(plan.steps * SIDE, terms - from) / 2",
    ),
    "later terms take the place of earlier ones": ("if (adds) {", "if (false) {"),
    "sums begin anew": ("part == 0, next", "true, next"),
    "half of a square is another's": ("square + 16 * SIDE + 16, row);\n}", "square + 16, row);\n}"),
    "pairs are dealt wrongly": ("const Line high = low + 16;", "const Line high = low;"),
    "a corner is not filled": ("std::memset(room, 0,", "std::memset(room, 0x40,"),
    "rows are left out": ("std::min(SIDE, rows - r), std::min", "rows - r > 8 ? 8 : 1, std::min"),
    "squares are not turned": ("round < 3", "round < 2"),
}


@pytest.mark.usefixtures("tiles", "marked_memory")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_its_source_is_found(
    said: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    plant(weight_gradients, FAULTS[fault], tmp_path, monkeypatch)
    weight_gradients._library = None
    assert not weight_gradients.load()
    assert [record.levelname for record in said.records if "something else" in record.message] == ["WARNING"]


def test_the_kernels_bring_it_with_them_and_a_run_is_told_what_it_has(tiles: None) -> None:
    cpu_kernels.unload()
    assert not can_take(draw(1, 8, 6), draw(1, 8, 6))
    assert cpu_kernels.prepare_training(torch.bfloat16) == "kernels and matrix units"
    assert can_take(draw(1, 8, 6), draw(1, 8, 6))
    weight_gradients.unload()
    assert cpu_kernels.prepare_training(torch.bfloat16) == "kernels"
    assert cpu_kernels.prepare_training(torch.bfloat16, may_compile=False) == "operators"
    assert cpu_kernels.prepare_training(torch.float32) == ""
