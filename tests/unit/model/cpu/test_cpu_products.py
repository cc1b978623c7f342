"""Products asked for as they are made fastest are the products that PyTorch makes, whatever there is to make them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from bertsmith.model.cpu import kernels as cpu_kernels
from bertsmith.model.cpu import products as cpu_products
from bertsmith.model.cpu import weight_gradients
from bertsmith.model.cpu.products import mapped, multiplied, turned_product
from bertsmith.model.linear import Linear
from made_kernels import kernels_unused, threads

BF16 = torch.bfloat16
# Rows, terms and columns of products of BERT-base's step, and of the edges of what is halved.
SHAPES = {
    (768, 768, 768): True,
    (1024, 3072, 768): True,
    (1343, 3072, 768): True,
    (1344, 3072, 768): False,
    (1535, 512, 1023): True,
    (1344, 1536, 768): True,
    (1344, 2000, 768): False,
    (1400, 2000, 768): True,
    (1400, 3072, 768): False,
    (513, 16, 512): True,
    (512, 16, 512): True,
    (511, 16, 512): False,
    (1024, 16, 512): False,
    (768, 768, 3072): False,
    (600, 16, 1024): False,
    (600, 16, 511): False,
}


@pytest.fixture
def two_threads() -> Iterator[None]:
    with threads(2):
        yield


def draw(seed: int, *shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def distance(ours: Tensor, exact: Tensor) -> float:
    return float((ours.double() - exact).norm() / exact.norm())


class Counted:
    """`torch.mm` or `torch.addmm`, and the rows that it was asked for."""

    def __init__(self, function: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        real, place = getattr(torch, function), {"mm": 0, "addmm": 1}[function]

        def counted(*args: Tensor, **options: Tensor) -> Tensor:
            self.rows.append(len(args[place]))
            return real(*args, **options)

        monkeypatch.setattr(torch, function, counted)


@pytest.mark.usefixtures("two_threads", "marked_memory")
@pytest.mark.parametrize("with_bias", [False, True], ids=["without bias", "with bias"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_halves_are_the_whole(shape: tuple[int, int, int], with_bias: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, terms, columns = shape
    a, b, bias = draw(1, rows, terms), draw(2, columns, terms).t(), draw(3, columns) if with_bias else None
    whole = torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
    counted = Counted("addmm" if with_bias else "mm", monkeypatch)
    found = multiplied(a, b, bias)
    assert counted.rows == ([-(-rows // 2), rows // 2] if SHAPES[shape] else [rows])
    assert found.dtype == BF16
    torch.testing.assert_close(found, whole, rtol=2**-7, atol=2**-7 * terms**0.5)
    exact = a.double() @ b.double() + (0 if bias is None else bias.double())
    assert distance(found, exact) <= 1.02 * distance(whole, exact)


@pytest.mark.parametrize("count", [1, 3])
def test_nothing_is_halved_on_other_than_two_threads(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with threads(count):
        counted = Counted("mm", monkeypatch)
        multiplied(draw(1, 768, 16), draw(2, 16, 768))
        assert counted.rows == [768]


def test_a_map_is_asked_for_as_a_linear_layer_where_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    if not cpu_products._has_linear(BF16):
        pytest.skip("this processor has no products of bf16 by oneDNN")
    asked, by_sums = [], cpu_products.multiplied
    monkeypatch.setattr(cpu_products, "multiplied", lambda *given: asked.append(1) or by_sums(*given))
    x, weight = draw(1, 40, 24), draw(2, 7, 24)
    mapped(x, weight)
    assert not asked
    mapped(x.float(), weight.float())
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    mapped(x, weight)
    assert len(asked) == 2


@pytest.mark.usefixtures("two_threads", "marked_memory")
@pytest.mark.parametrize("with_bias", [False, True], ids=["without bias", "with bias"])
@pytest.mark.parametrize("shape", [*SHAPES, (0, 16, 24), (1, 1, 1), (5, 33, 2), (1400, 70, 33)], ids=str)
def test_a_map_is_that_of_float64(shape: tuple[int, int, int], with_bias: bool) -> None:
    rows, terms, columns = shape
    x, weight, bias = draw(1, rows, terms), draw(2, columns, terms), draw(3, columns) if with_bias else None
    found = mapped(x, weight, bias)
    exact = x.double() @ weight.double().t() + (0 if bias is None else bias.double())
    assert (found.dtype, found.shape) == (BF16, exact.shape)
    if rows:
        whole = torch.nn.functional.linear(x, weight, bias)
        assert distance(found, exact) <= 1.02 * distance(whole, exact)


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32, torch.float64], ids=str)
def test_a_map_without_a_linear_layer_of_onednn_is_the_same(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight, bias = draw(1, 40, 24, dtype=dtype), draw(2, 7, 24, dtype=dtype), draw(3, 7, dtype=dtype)
    found = mapped(x, weight, bias)
    monkeypatch.setattr(cpu_products, "_has_linear", lambda _: False)
    torch.testing.assert_close(found, mapped(x, weight, bias))
    assert found.dtype == dtype


@pytest.fixture(params=["as here", "without matrix units", "operators"])
def means(request: pytest.FixtureRequest) -> str:
    """What makes a turned product: the matrix units where they are there; the kernels and oneDNN; oneDNN alone."""
    if request.param != "operators":
        request.getfixturevalue("kernels")
    if request.param == "without matrix units":
        weight_gradients._library = None
    return str(request.param)


def different_layouts(matrix: Tensor) -> dict[str, Tensor]:
    """The same numbers by rows, by columns, and among others; and the first row, which lies there once for all."""
    rows, columns = matrix.shape
    apart = matrix.new_full((rows, 2 * columns), torch.nan)
    apart[:, ::2] = matrix
    return {
        "rows": matrix,
        "columns": matrix.t().contiguous().t(),
        "apart": apart[:, ::2],
        "expanded": matrix[:1].expand(rows, columns),
    }


@pytest.mark.usefixtures("marked_memory")
def test_a_map_reads_any_layout() -> None:
    x, weight, bias = draw(1, 40, 24), draw(2, 16, 24), draw(3, 16)
    for name, first in different_layouts(x).items():
        for other, second in different_layouts(weight).items():
            exact = first.double() @ second.double().t() + bias.double()
            assert distance(mapped(first, second, bias), exact) < 0.01, (name, other)


@pytest.mark.usefixtures("marked_memory")
@pytest.mark.parametrize("terms", [1, 2, 511, 512, 515])
@pytest.mark.parametrize(("left", "right"), [(1, 1), (33, 70), (70, 33), (64, 64)])
def test_a_turned_product_is_that_of_float64(means: str, terms: int, left: int, right: int) -> None:
    a, b = draw(1, terms, left), draw(2, terms, right)
    for name, first in different_layouts(a).items():
        for other, second in different_layouts(b).items():
            exact = first.double().t() @ second.double()
            found = turned_product(first, second)
            whole = first.is_contiguous() and second.is_contiguous()
            in_fp32 = means == "as here" and whole and weight_gradients._library is not None
            assert found.dtype == (torch.float32 if in_fp32 else BF16)
            assert found.shape == (left, right)
            close = 1e-5 if in_fp32 else 2**-8
            size = first.double().norm(dim=0)[:, None] * second.double().norm(dim=0)
            assert bool(((found.double() - exact).abs() <= close * (exact.abs() + size)).all()), (name, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_a_turned_product_of_other_numbers_is_in_their_dtype(kernels: None, dtype: torch.dtype) -> None:
    a, b = draw(1, 600, 20, dtype=dtype), draw(2, 600, 30, dtype=dtype)
    found = turned_product(a, b)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), a.double().t() @ b.double(), rtol=1e-2, atol=5e-2)


def test_of_no_terms_comes_zero(means: str) -> None:
    assert torch.equal(turned_product(draw(1, 0, 5), draw(2, 0, 7)), torch.zeros(5, 7, dtype=BF16))


@pytest.mark.parametrize("frozen", [(), ("weight", "bias"), ("x",)], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 520])
def test_a_linear_map_in_bf16_has_the_gradients_of_fp32(means: str, tokens: int, frozen: tuple[str, ...]) -> None:
    """For a gradient that is expanded, one that is turned, and one as it should be; some inputs without a gradient."""
    torch.manual_seed(0)
    narrow, wide = Linear(24, 40), torch.nn.Linear(24, 40)
    wide.load_state_dict(narrow.state_dict())
    x = draw(1, tokens, 24)
    downs = [draw(2, 1, 40, dtype=torch.float32).expand(tokens, 40), draw(3, 40, tokens, dtype=torch.float32).t()]
    for down in [*downs, draw(4, tokens, 40, dtype=torch.float32)]:
        sides = []
        for module, given in ((narrow, x.clone()), (wide, x.float())):
            module.zero_grad()
            given.requires_grad_("x" not in frozen)
            for name, each in module.named_parameters():
                each.requires_grad_(name not in frozen)
            (module(given).backward(down.bfloat16().to(given.dtype)))
            sides.append({"x": given.grad, **{name: each.grad for name, each in module.named_parameters()}})
        ours, theirs = sides
        for name, exact in theirs.items():
            assert (ours[name] is None) == (exact is None) == (name in frozen)
            if exact is not None and exact.numel():
                torch.testing.assert_close(ours[name].float(), exact, rtol=2**-6, atol=0.02 * (tokens + 1) ** 0.5)


def test_a_product_in_half_precision_is_not_differentiated_twice() -> None:
    """What the kernels make of it would leave out what a second derivative needs, without a word."""
    x = draw(1, 3, 24).requires_grad_()
    (once,) = torch.autograd.grad(Linear(24, 40)(x).float().square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        once.sum().backward()


def test_kernels_are_asked_for_what_they_turn(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.Size] = []
    real = cpu_kernels.turned
    monkeypatch.setattr(cpu_kernels, "turned", lambda x: asked.append(x.shape) or real(x))
    weight_gradients._library = None
    turned_product(draw(1, 600, 20), draw(2, 600, 30))
    with kernels_unused():
        turned_product(draw(1, 600, 20), draw(2, 600, 30))
    assert asked == [(600, 20)]
