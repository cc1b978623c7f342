"""What the C++ kernels make of great and small numbers, of NaN and of infinity."""

from __future__ import annotations

import math

import pytest
import torch

from bertsmith.model.activations import FUNCTIONS
from bertsmith.model.cpu.kernels import (
    Gradients,
    activation_backward,
    add_normalise,
    add_normalise_backward,
    softmax_,
    softmax_backward_,
)
from bertsmith.model.cpu.masks import Dropped, threshold_of
from made_kernels import draw, exact_derivative, rows_for

pytestmark = pytest.mark.usefixtures("kernels", "marked_memory")
EPSILON = 1e-5
NONE = Dropped(0, 0, 1.0)
BF16 = torch.bfloat16
both_dtypes = pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_a_derivative_is_within_rounding_at_every_number_of_bf16(name: str) -> None:
    """Great and small, those at which PyTorch's own, which works in fp32, has infinite squares among them."""
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(BF16)
    x = numbers[numbers.isfinite()].float()[None]
    found, _ = activation_backward(torch.ones_like(x), x, name)
    torch.testing.assert_close(found.double(), exact_derivative(name, x.double()), rtol=0, atol=5e-7)
    inside = x[x.abs() < 1e12].requires_grad_()
    (theirs,) = torch.autograd.grad(FUNCTIONS[name](inside).sum(), inside)
    torch.testing.assert_close(theirs, found[x.abs() < 1e12], rtol=0, atol=2e-6)


@both_dtypes
@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_what_is_no_number_goes_back_through_an_activation(name: str, dtype: torch.dtype) -> None:
    gradient, x = draw(1, 3, 20, dtype=dtype), draw(2, 3, 20, dtype=dtype)
    place = torch.zeros(3, 20, dtype=torch.bool)
    place[1, 4] = True
    grad_x, grad_bias = activation_backward(gradient.masked_fill(place, math.nan), x, name)
    assert torch.equal(grad_x.isnan(), place)
    assert torch.equal(grad_bias.isnan(), place.any(0))
    for value in (math.nan, math.inf, -math.inf):
        harmed = x.masked_fill(place, value).requires_grad_()
        grad_x, grad_bias = activation_backward(gradient, harmed.detach(), name)
        (theirs,) = torch.autograd.grad(FUNCTIONS[name](harmed), harmed, gradient)
        assert torch.equal(grad_x.isnan(), theirs.isnan())
        assert torch.equal(grad_bias.isnan(), theirs.isnan().any(0))
        assert grad_x.isnan().any() or torch.equal(grad_x, theirs)


@both_dtypes
@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, -math.inf])
def test_what_is_no_number_goes_through_its_own_row_alone(value: float, dtype: torch.dtype) -> None:
    x, y, bias, weight, shift = rows_for(1, 3, 20, dtype)
    for harmed in (x, y):
        before = harmed[1, 4].clone()
        harmed[1, 4] = value
        made = add_normalise(x, y, bias, weight, shift, EPSILON, NONE)
        assert made.out.isnan().all(1).tolist() == made.narrow.isnan().all(1).tolist() == [False, True, False]
        assert made.out[::2].isfinite().all()
        given_ = Gradients(made.out, None)
        grad_x, grad_y, *_ = add_normalise_backward(given_, dtype, made.sum, made.moments, weight, NONE)
        assert grad_x.isnan().all(1).tolist() == grad_y.isnan().all(1).tolist() == [False, True, False]
        harmed[1, 4] = before
    scores = draw(3, 1, 20, 20, dtype=dtype)
    scores[0, 1, 4], scores[0, 2, 19] = value, math.nan
    lengths = torch.tensor([19])  # the last column is padding, whatever is there
    out = softmax_(scores, lengths, Dropped(1, threshold_of(0.5), 2.0))
    harmless = value == -math.inf
    assert out.isnan().any(-1)[0].tolist() == [row == 1 and not harmless for row in range(20)]
    assert harmless or scores[0, 1, :19].isnan().all()
    back = torch.ones_like(out)
    again = softmax_backward_(back, scores, True)
    assert torch.equal(again.isnan(), out.isnan())
    assert back.isnan().any(-1)[0].tolist() == [row == 1 and not harmless for row in range(20)]


def test_great_and_small_numbers_are_rounded_as_pytorch_rounds_them() -> None:
    """To the nearest even, past the largest to infinity, down to the smallest that there are, with the sign of zero."""
    bits = torch.arange(0, 2**32, 2**32 // 99991, dtype=torch.int64).to(torch.int32).view(torch.float32)
    halves = torch.tensor([0x3F808000, 0x3F818000, 0x7F7F8000, 0x7F7F7FFF, 0x00008000, 0x00018000, 1, -(2**31)])
    values = torch.cat([bits[~bits.isnan()], halves.to(torch.int32).view(torch.float32)])
    # With sum 0, deviation 1 and weight 0, what comes out is the shift.
    x, weight = torch.zeros(1, len(values)), torch.zeros(len(values))
    made = add_normalise(x, x.bfloat16(), weight, weight, values, 1.0, NONE)
    assert torch.equal(made.narrow.view(torch.int16), (weight + values).bfloat16().view(torch.int16)[None])


def test_no_kind_of_nan_is_rounded_to_a_number() -> None:
    kinds = torch.tensor([0x7FC00000, 0x7F800001, 0x7FFFFFFF, -0x400000, -1], dtype=torch.int32).view(torch.float32)
    zeros = torch.zeros(1, 5)
    made = add_normalise(zeros, zeros.bfloat16(), zeros[0], kinds, kinds, 1.0, NONE)
    assert made.out.isnan().all()
    assert made.narrow.isnan().all()


def test_scores_far_apart_leave_nothing_to_the_lower_one() -> None:
    scores = torch.tensor([[[0.0, -70.0, -70.5], [3e38, -3e38, 0.0], [-1e30, -1e30, -1e30]]]).bfloat16()
    found = softmax_(scores, torch.tensor([3]), NONE)
    third = float(torch.tensor(1 / 3).bfloat16())
    assert found[0, :, 0].tolist() == [1.0, 1.0, third]
    assert float(found[0, 0, 1]) == pytest.approx(math.exp(-70), rel=2**-8, abs=0)
    assert not found[0, 0, 2], "and a number too small to count is none"
    assert not found[0, 1, 1:].any()
    assert found[0, 2].tolist() == [third] * 3
