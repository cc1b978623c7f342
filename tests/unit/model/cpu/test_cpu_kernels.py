"""The C++ kernels against PyTorch in float64 with the same places dropped, which numpy works out by itself here.

Legend: T token slots, H width, B blocks, L slots of a padded sequence.
"""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from bertsmith.model.activations import FUNCTIONS
from bertsmith.model.cpu.kernels import (
    Gradients,
    activation_backward,
    add_normalise,
    add_normalise_backward,
    cross_entropy,
    drop,
    softmax_,
    softmax_backward_,
)
from bertsmith.model.cpu.library import can_take
from bertsmith.model.cpu.masks import Dropped, scale_of, threshold_of
from made_kernels import draw, exact_derivative, kernels_unused, rows_for, threads

pytestmark = pytest.mark.usefixtures("kernels", "marked_memory")
many_shapes = settings(deadline=None, max_examples=200)
ROWS = st.sampled_from([0, 1, 2, 3, 7, 20])
COLUMNS = st.integers(1, 70) | st.sampled_from([128, 131])
THREADS = st.integers(1, 3)
SEEDS = st.integers(0, 2**63 - 1)
DROPPED = st.builds(
    lambda key, probability: Dropped(key, threshold_of(probability), scale_of(probability)),
    SEEDS,
    st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
EPSILON = 1e-5
CLOSE = {torch.float32: (2e-5, 2e-5), torch.bfloat16: (2**-8, 1e-6)}  # bf16 is off by half of 2^-8, once
NONE = Dropped(0, 0, 1.0)
BF16, FP32 = torch.bfloat16, torch.float32
DTYPES = st.sampled_from([BF16, FP32])
both_dtypes = pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)


def kept(dropped: Dropped, rows: int, columns: int) -> Tensor:
    """1 where a place is kept, else 0, float64[rows, columns]: 16 bits each of SplitMix64, its state counting on."""
    words = -(-columns // 4)
    with np.errstate(over="ignore"):
        z = np.uint64(dropped.key) + np.arange(1, rows * words + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = (z ^ (z >> np.uint64(31))).astype("<u8").view("<u2").reshape(rows, 4 * words)[:, :columns]
    return torch.from_numpy((bits >= dropped.threshold).astype(np.float64))


def check(ours: Tensor, exact: Tensor, size: float = 1.0) -> None:
    """size: of the numbers that were added up to it."""
    relative, absolute = CLOSE[ours.dtype]
    torch.testing.assert_close(
        ours.double(), exact.detach().double(), rtol=relative, atol=absolute + 4e-7 * size, equal_nan=True
    )


@many_shapes
@given(ROWS, COLUMNS, DROPPED, THREADS, st.integers(0, 99), st.sampled_from(["out", "narrow", "both"]), DTYPES)
def test_a_sum_is_normalised_forward_and_backward_as_in_float64(
    rows: int, columns: int, dropped: Dropped, count: int, seed: int, through: str, dtype: torch.dtype
) -> None:
    x, y, bias, weight, shift = rows_for(seed, rows, columns, dtype)
    grad_out = draw(seed + 4, rows, columns) if through != "narrow" else None
    grad_narrow = draw(seed + 5, rows, columns, dtype=dtype) if through != "out" else None
    with threads(count):
        made = add_normalise(x, y, bias, weight, shift, EPSILON, dropped)
        given_ = Gradients(grad_out, grad_narrow)
        back = add_normalise_backward(given_, dtype, made.sum, made.moments, weight, dropped)
    inputs = [each.double().requires_grad_() for each in (x, y, bias, weight, shift)]
    # As the kernel is given it, the scale is a number of fp32.
    summed = inputs[0] + (inputs[1] + inputs[2]) * kept(dropped, rows, columns) * float(np.float32(dropped.scale))
    normal = functional.layer_norm(summed, (columns,), inputs[3], inputs[4], EPSILON)
    size = float(made.sum.abs().amax()) * float(made.moments[:, 1].amax()) + 1 if rows else 1.0
    unchanged = made.sum == x
    assert torch.equal(unchanged | (kept(dropped, rows, columns) > 0), torch.ones(rows, columns, dtype=torch.bool))
    check(made.sum, summed, size)
    check(made.out, normal, size)
    check(made.narrow, normal, size)
    assert torch.equal(made.narrow, made.out.to(dtype))
    gradient = sum(each.double() for each in (grad_out, grad_narrow) if each is not None)
    expected = torch.autograd.grad(normal, inputs, gradient)
    steep = size * size * (1 + float(made.moments[:, 1].amax() if rows else 0)) * (rows + 10)
    for ours, exact in zip(back, expected, strict=True):
        check(ours, exact, steep)


@st.composite
def scores_and_lengths(draw_: st.DrawFn) -> tuple[Tensor, Tensor]:
    """[B, L, L], and a length for each sequence, of 0, 1, all slots or some."""
    longest, heads = draw_(st.integers(1, 70)), draw_(st.integers(1, 3))
    length = st.sampled_from([0, 1, longest]) | st.integers(0, longest)
    lengths = draw_(st.lists(length, min_size=0, max_size=3))
    scores = 3 * draw(draw_(st.integers(0, 99)), len(lengths) * heads, longest, longest)
    return scores.to(draw_(DTYPES)), torch.tensor(lengths, dtype=torch.int64)


def exact_softmax(scores: Tensor, lengths: Tensor) -> Tensor:
    """float64, of float64 scores; 0 for a sequence of no slot."""
    heads, longest = len(scores) // max(len(lengths), 1), scores.shape[-1]
    there = (torch.arange(longest) < lengths[:, None]).repeat_interleave(heads, 0)[:, None]
    return torch.softmax(torch.where(there, scores, -1e300), -1) * there


@many_shapes
@given(scores_and_lengths(), DROPPED, THREADS)
def test_a_softmax_forward_and_backward_is_that_of_float64(
    given_: tuple[Tensor, Tensor], dropped: Dropped, count: int
) -> None:
    scores, lengths = given_
    places = kept(dropped, len(scores) * scores.shape[1], scores.shape[-1]).view(scores.shape)
    gradient = draw(5, *scores.shape, dtype=scores.dtype)
    exact_scores = scores.double().requires_grad_()
    exact = exact_softmax(exact_scores, lengths)
    with threads(count):
        out = softmax_(scores, lengths, dropped)
        back = gradient.clone()
        again = softmax_backward_(back, scores, dropped.threshold > 0)
    check(out, exact * places)
    check(scores.abs(), exact)
    assert not (out[places == 0]).any()
    assert torch.equal(again, out)
    assert torch.equal(again.signbit(), out.signbit())
    if dropped.threshold:
        assert torch.equal(scores.signbit(), places == 0), "so that the backward pass knows the places"
    else:
        assert out is scores
        assert again is scores
    # The backward pass reads probabilities that were rounded, so it is held to those.
    probabilities, grad = scores.abs().double(), gradient.double() * places
    wanted = probabilities * (grad - (probabilities * grad).sum(-1, keepdim=True))
    close = 2**-7 if scores.dtype == BF16 else 2**-20
    torch.testing.assert_close(back.double(), wanted, rtol=close, atol=close * 2e-3 + 1e-6)
    (through_autograd,) = torch.autograd.grad(exact * places, exact_scores, gradient.double())
    torch.testing.assert_close(back.double(), through_autograd, rtol=4 * close, atol=2 * close)


@many_shapes
@given(ROWS, COLUMNS, st.sampled_from(sorted(FUNCTIONS)), THREADS, st.integers(0, 99), DTYPES)
def test_the_gradient_of_an_activation_is_that_of_float64(
    rows: int, columns: int, name: str, count: int, seed: int, dtype: torch.dtype
) -> None:
    gradient, x = ((size * draw(seed + size, rows, columns)).to(dtype) for size in (1, 3))
    with threads(count):
        grad_x, grad_bias = activation_backward(gradient, x, name)
    exact = gradient.double() * exact_derivative(name, x.double())
    check(grad_x, exact)
    check(grad_bias, exact.sum(0), float(exact.abs().sum(0).amax()))
    assert grad_bias.dtype == FP32


@many_shapes
@given(ROWS.filter(bool), COLUMNS, DROPPED, THREADS, st.integers(0, 99), DTYPES)
def test_dropout_keeps_the_places_of_its_key_and_rounds_once(
    rows: int, columns: int, dropped: Dropped, count: int, seed: int, dtype: torch.dtype
) -> None:
    x = draw(seed, rows, columns, dtype=dtype)
    with threads(count):
        found = drop(x.view(1, rows, columns), dropped)[0]
    factors = kept(dropped, rows, columns).float() * dropped.scale
    assert torch.equal(found, (x.float() * factors).to(dtype))


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_as_many_places_are_dropped_as_asked_for_and_none_knows_of_another(probability: float) -> None:
    rows, columns = 1000, 403
    ones = torch.ones(rows, columns)

    def places(key: int) -> Tensor:
        return (drop(ones, Dropped(key, threshold_of(probability), scale_of(probability))) == 0).double()

    found, other = places(7), places(8)
    deviation = math.sqrt(probability * (1 - probability) / found.numel())
    assert float(found.mean()) == pytest.approx(probability, abs=5 * deviation)
    rows_apart, columns_apart = (found[1:], found[:-1]), (found[:, 1:], found[:, :-1])
    for a, b in (rows_apart, columns_apart, (found, other), (found[:, 4:], found[:, :-4])):
        both = probability**2
        assert float((a * b).mean()) == pytest.approx(both, abs=5 * math.sqrt(both * (1 - both) / a.numel()) * 2)


def test_a_key_is_drawn_where_there_is_something_to_drop() -> None:
    torch.manual_seed(3)
    first, second = Dropped.draw(0.1), Dropped.draw(0.1)
    assert first.key != second.key
    torch.manual_seed(3)
    assert Dropped.draw(0.1) == first
    before = torch.get_rng_state()
    assert Dropped.draw(0.0) == Dropped(0, 0, 1.0)
    assert torch.equal(torch.get_rng_state(), before)


def all_of(count: int, dtype: torch.dtype, size: int = 77) -> list[Tensor]:
    """What every kernel makes with so many threads."""
    dropped = Dropped(11, threshold_of(0.1), scale_of(0.1))
    x, y, bias, weight, shift = rows_for(1, size, size, dtype)
    scores, gradient = draw(2, 2, 4, size, size, dtype=dtype)
    with threads(count):
        made = add_normalise(x, y, bias, weight, shift, EPSILON, dropped)
        back = add_normalise_backward(Gradients(y.float(), y), dtype, made.sum, made.moments, weight, dropped)
        probabilities = softmax_(scores, torch.tensor([size, 5]), dropped)
        again = softmax_backward_(gradient, scores, True)
        through = [each for name in FUNCTIONS for each in activation_backward(y, made.narrow, name)]
        loss, right, grad_scores = cross_entropy(y, torch.arange(size) - 3, True)
        return [
            *made,
            *back,
            probabilities,
            scores,
            gradient,
            again,
            *through,
            loss,
            right,
            grad_scores,
            drop(y, dropped),
        ]


@both_dtypes
def test_any_number_of_threads_gives_the_same_bits(dtype: torch.dtype) -> None:
    """Sums over rows too: they are added up block by block of rows, whoever made them."""
    alone = all_of(1, dtype)
    for count in (1, 2, 3, 16):
        assert all(map(torch.equal, all_of(count, dtype), alone))


@both_dtypes
def test_bits_do_not_depend_on_where_tensors_lie(dtype: torch.dtype) -> None:
    """A compiler may let a loop begin where memory is aligned, which would change the order of a sum."""
    given_ = rows_for(1, 5, 131, dtype)
    dropped = Dropped(11, threshold_of(0.1), scale_of(0.1))

    def moved(tensor: Tensor, places: int) -> Tensor:
        return torch.cat([tensor.new_zeros(places), tensor.reshape(-1)])[places:].view(tensor.shape)

    def made(places: int) -> list[Tensor]:
        there = [moved(each, places) for each in given_]
        forward = add_normalise(*there, EPSILON, dropped)
        sums, y = moved(forward.sum, places), moved(there[1], places)
        scores, gradient = (moved(y[None, :, :5], places) for _ in range(2))
        probabilities = softmax_(scores, torch.tensor([4]), dropped)
        back = [*add_normalise_backward(Gradients(None, y), dtype, sums, forward.moments, there[3], dropped), gradient]
        back += [softmax_backward_(gradient, scores, True), *activation_backward(y, there[1], "gelu"), drop(y, dropped)]
        loss, _, grad_scores = cross_entropy(y, torch.arange(5), True)
        return [*forward, *back, probabilities, scores, loss, grad_scores]

    at_a_round_address = made(0)
    for places in (1, 3, 8):
        assert all(map(torch.equal, made(places), at_a_round_address))


def test_threads_of_python_may_call_at_once() -> None:
    alone, found = all_of(2, BF16), [[] for _ in range(4)]

    def call(results: list[list[Tensor]]) -> None:
        results += [all_of(2, BF16) for _ in range(8)]

    callers = [threading.Thread(target=call, args=(each,)) for each in found]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [len(each) for each in found] == [8] * 4
    assert all(all(map(torch.equal, results, alone)) for each in found for results in each)


def test_only_tensors_that_the_kernels_read_aright_are_theirs() -> None:
    x, y = draw(1, 4, 6), draw(2, 4, 6, dtype=torch.bfloat16)
    assert can_take(y, x)
    assert can_take(x, x)
    assert not can_take(y.half(), x)
    assert not can_take(y.double(), x)
    assert not can_take(y.t(), x)
    assert not can_take(y, x[:, ::2])
    assert not can_take(y[:1].expand(4, 6), x)
    assert not can_take(y.to("meta"), x)
    with kernels_unused():
        assert not can_take(y, x)
    assert can_take(y, x)
