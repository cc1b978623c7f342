"""Products in half precision on a CPU are those of float64, whatever lies where and whatever kernels there are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bertsmith.model.cpu import products
from bertsmith.model.cpu.products import transposed_product
from bertsmith.model.linear import Linear
from made_models import distance

BF16 = torch.bfloat16


def draw(seed: int, *shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.fixture(params=["matrix units", "none"])
def units(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """As on a processor with matrix units, and without."""
    monkeypatch.setattr(products, "_has_matrix_units", lambda: request.param == "matrix units")
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
def test_a_linear_map_reads_any_layout() -> None:
    linear = Linear(24, 16).to(BF16).float()
    for name, x in different_layouts(draw(1, 40, 24)).items():
        exact = torch.nn.functional.linear(x.double(), linear.weight.double(), linear.bias.double())
        assert distance(linear(x).double(), exact) < 0.01, name


@pytest.mark.usefixtures("marked_memory")
@pytest.mark.parametrize("terms", [1, 2, 511, 512, 515])
@pytest.mark.parametrize(("left", "right"), [(1, 1), (33, 70), (70, 33), (64, 64)])
def test_a_transposed_product_is_that_of_float64(units: str, terms: int, left: int, right: int) -> None:
    a, b = draw(1, terms, left), draw(2, terms, right)
    for name, first in different_layouts(a).items():
        for other, second in different_layouts(b).items():
            exact = first.double().t() @ second.double()
            found = transposed_product(first, second)
            assert (found.dtype, found.shape) == (BF16, (left, right))
            size = first.double().norm(dim=0)[:, None] * second.double().norm(dim=0)
            assert bool(((found.double() - exact).abs() <= 2**-8 * (exact.abs() + size)).all()), (name, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
def test_a_transposed_product_of_other_numbers_is_in_their_dtype(units: str, dtype: torch.dtype) -> None:
    a, b = draw(1, 600, 20, dtype=dtype), draw(2, 600, 30, dtype=dtype)
    found = transposed_product(a, b)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), a.double().t() @ b.double(), rtol=1e-2, atol=5e-2)


def test_with_matrix_units_the_narrower_side_is_transposed_before(monkeypatch: pytest.MonkeyPatch) -> None:
    given, real = [], torch.mm
    monkeypatch.setattr(torch, "mm", lambda a, b: given.append(a.is_contiguous()) or real(a, b))
    sides = [(draw(1, 600, 20), draw(2, 600, 30)), (draw(1, 600, 30), draw(2, 600, 20))]
    for has_units in (True, False):
        monkeypatch.setattr(products, "_has_matrix_units", lambda has_units=has_units: has_units)
        for a, b in sides:
            transposed_product(a, b)
    transposed_product(*(each.float() for each in sides[0]))
    assert given == [True, False, False, False, False]


def test_of_no_terms_comes_zero(units: str) -> None:
    assert torch.equal(transposed_product(draw(1, 0, 5), draw(2, 0, 7)), torch.zeros(5, 7, dtype=BF16))


@pytest.mark.parametrize("frozen", [(), ("weight", "bias"), ("x",)], ids=str)
@pytest.mark.parametrize("tokens", [0, 1, 520])
def test_a_linear_map_in_bf16_has_the_gradients_of_fp32(units: str, tokens: int, frozen: tuple[str, ...]) -> None:
    """For a gradient that is expanded, one that is transposed, and one as usual; some inputs without a gradient."""
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
