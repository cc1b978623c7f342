"""The C++ kernels against PyTorch in float64 with the same places dropped, which numpy works out by itself here.

Legend: T token slots, H width, B blocks, L slots of a padded sequence.
"""

from __future__ import annotations

import math
import threading
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from bertsmith.model.activations import FUNCTIONS, slopes
from bertsmith.model.cpu import kernels as cpu_kernels
from bertsmith.model.cpu.dropout import scale_of, threshold_of
from bertsmith.model.cpu.kernels import Dropped, add_normalise, add_normalise_back, softmax_, softmax_back_, turned
from made_kernels import kernels_unused, threads

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


def kept(dropped: Dropped, rows: int, columns: int) -> Tensor:
    """1 where a place is kept, else 0, float64[rows, columns]: 16 bits each of SplitMix64, its state counting on."""
    words = -(-columns // 4)
    with np.errstate(over="ignore"):
        z = np.uint64(dropped.key) + np.arange(1, rows * words + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = (z ^ (z >> np.uint64(31))).astype("<u8").view("<u2").reshape(rows, 4 * words)[:, :columns]
    return torch.from_numpy((bits >= dropped.threshold).astype(np.float64))


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check(ours: Tensor, exact: Tensor, size: float = 1.0) -> None:
    """size: of the numbers that were added up to it."""
    relative, absolute = CLOSE[ours.dtype]
    torch.testing.assert_close(
        ours.double(), exact.detach().double(), rtol=relative, atol=absolute + 4e-7 * size, equal_nan=True
    )


def rows_for(seed: int, rows: int, columns: int) -> tuple[Tensor, ...]:
    """x, y, bias, weight, shift."""
    x, y = draw(seed, rows, columns), draw(seed + 1, rows, columns, dtype=torch.bfloat16)
    return x, y, *draw(seed + 2, 3, columns)


@many_shapes
@given(ROWS, COLUMNS, DROPPED, THREADS, st.integers(0, 99), st.sampled_from(["out", "narrow", "both"]))
def test_a_sum_is_normalised_forth_and_back_as_in_float64(
    rows: int, columns: int, dropped: Dropped, count: int, seed: int, through: str
) -> None:
    x, y, bias, weight, shift = rows_for(seed, rows, columns)
    by_out = draw(seed + 4, rows, columns) if through != "narrow" else None
    by_narrow = draw(seed + 5, rows, columns, dtype=torch.bfloat16) if through != "out" else None
    with threads(count):
        made = add_normalise(x, y, bias, weight, shift, EPSILON, dropped)
        back = add_normalise_back(by_out, by_narrow, made.sum, made.moments, weight, dropped)
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
    assert torch.equal(made.narrow, made.out.bfloat16())
    by = sum(each.double() for each in (by_out, by_narrow) if each is not None)
    expected = torch.autograd.grad(normal, inputs, by)
    steep = size * size * (1 + float(made.moments[:, 1].amax() if rows else 0)) * (rows + 10)
    for ours, exact in zip(back, expected, strict=True):
        check(ours, exact, steep)


@st.composite
def scores_and_lengths(draw_: st.DrawFn) -> tuple[Tensor, Tensor]:
    """bf16[B, L, L], and a length for each sequence, of 0, 1, all slots or some."""
    longest, heads = draw_(st.integers(1, 70)), draw_(st.integers(1, 3))
    length = st.sampled_from([0, 1, longest]) | st.integers(0, longest)
    lengths = draw_(st.lists(length, min_size=0, max_size=3))
    scores = 3 * draw(draw_(st.integers(0, 99)), len(lengths) * heads, longest, longest)
    return scores.bfloat16(), torch.tensor(lengths, dtype=torch.int64)


def exact_odds(scores: Tensor, lengths: Tensor) -> Tensor:
    """float64, of float64 scores; 0 for a sequence of no slot."""
    heads, longest = len(scores) // max(len(lengths), 1), scores.shape[-1]
    there = (torch.arange(longest) < lengths[:, None]).repeat_interleave(heads, 0)[:, None]
    return torch.softmax(torch.where(there, scores, -1e300), -1) * there


@many_shapes
@given(scores_and_lengths(), DROPPED, THREADS)
def test_a_softmax_forth_and_back_is_that_of_float64(
    given_: tuple[Tensor, Tensor], dropped: Dropped, count: int
) -> None:
    scores, lengths = given_
    places = kept(dropped, len(scores) * scores.shape[1], scores.shape[-1]).view(scores.shape)
    by = draw(5, *scores.shape, dtype=torch.bfloat16)
    exact_scores = scores.double().requires_grad_()
    exact = exact_odds(exact_scores, lengths)
    with threads(count):
        out = softmax_(scores, lengths, dropped)
        back = by.clone()
        went_on = softmax_back_(back, scores, dropped.threshold > 0)
    check(out, exact * places)
    check(scores.abs(), exact)
    assert not (out[places == 0]).any()
    assert torch.equal(went_on.view(torch.int16), out.view(torch.int16))
    if dropped.threshold:
        assert torch.equal(scores.signbit(), places == 0), "so that the way back knows the places"
    else:
        assert out is scores
        assert went_on is scores
    # The way back reads odds that were rounded, so it is held to those.
    odds, given_back = scores.abs().double(), by.double() * places
    wanted = odds * (given_back - (odds * given_back).sum(-1, keepdim=True))
    torch.testing.assert_close(back.double(), wanted, rtol=2**-7, atol=1e-5)
    (through_autograd,) = torch.autograd.grad(exact * places, exact_scores, by.double())
    torch.testing.assert_close(back.double(), through_autograd, rtol=2**-5, atol=2**-6)


def by_bits(x: Tensor) -> Tensor:
    return x.view(torch.int16).long() & 0xFFFF


def exact_slope(name: str, x: Tensor) -> Tensor:
    """The derivative as it is written down, with nothing lost where terms almost cancel."""
    if name == "relu":
        return (x > 0).double()
    if name == "gelu":
        return torch.special.erfc(-x / math.sqrt(2)) / 2 + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    steep = math.sqrt(8 / math.pi)
    share = torch.sigmoid(steep * (x + 0.044715 * x**3))
    return share + x * share * (1 - share) * steep * (1 + 3 * 0.044715 * x * x)


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_slopes_are_derivatives_to_one_place_of_fp32_and_those_of_pytorch(name: str) -> None:
    numbers = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)
    x, table = numbers[numbers.isfinite()], slopes(name)
    assert (table.dtype, table.shape, table.requires_grad) == (torch.float32, (1 << 16,), False)
    lost = 1e-14  # by float64, where what is left of 1 is as small
    torch.testing.assert_close(table[by_bits(x)].double(), exact_slope(name, x.double()), rtol=2**-23, atol=lost)
    x = x[x.abs() < 1e19].requires_grad_()  # above it PyTorch, which works in fp32, has infinite squares
    (theirs,) = torch.autograd.grad(FUNCTIONS[name](x).sum(), x)
    torch.testing.assert_close(theirs.float(), table[by_bits(x.detach())], rtol=2**-8, atol=2e-6)


@many_shapes
@given(ROWS, COLUMNS, st.sampled_from(sorted(FUNCTIONS)), THREADS, st.integers(0, 99))
def test_the_way_back_through_an_activation_is_that_of_float64(
    rows: int, columns: int, name: str, count: int, seed: int
) -> None:
    by, x = (size * draw(seed + size, rows, columns) for size in (1, 3))
    by, x = by.bfloat16(), x.bfloat16()
    with threads(count):
        by_x, by_bias = cpu_kernels.activation_back(by, x, slopes(name))
    steep = slopes(name)[by_bits(x)]
    inputs = x.double().requires_grad_()
    (exact,) = torch.autograd.grad(FUNCTIONS[name](inputs), inputs, by.double())
    check(by_x, exact)
    check(by_bias, exact.sum(0), float(exact.abs().sum(0).amax()))
    assert by_bias.dtype == torch.float32
    assert torch.equal(by_x, (by.float() * steep).bfloat16()), "rounded once"


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_what_is_no_number_goes_back_through_an_activation(name: str) -> None:
    by, x = draw(1, 3, 20, dtype=torch.bfloat16), draw(2, 3, 20, dtype=torch.bfloat16)
    place = torch.zeros(3, 20, dtype=torch.bool)
    place[1, 4] = True
    by_x, by_bias = cpu_kernels.activation_back(by.masked_fill(place, math.nan), x, slopes(name))
    assert torch.equal(by_x.isnan(), place)
    assert torch.equal(by_bias.isnan(), place.any(0))
    for value in (math.nan, math.inf, -math.inf):
        harmed = x.masked_fill(place, value).requires_grad_()
        by_x, by_bias = cpu_kernels.activation_back(by, harmed.detach(), slopes(name))
        (theirs,) = torch.autograd.grad(FUNCTIONS[name](harmed), harmed, by)
        assert torch.equal(by_x.isnan(), theirs.isnan())
        assert torch.equal(by_bias.isnan(), theirs.isnan().any(0))
        assert by_x.isnan().any() or torch.equal(by_x, theirs)


@many_shapes
@given(st.integers(0, 140), st.integers(1, 140), THREADS)
def test_a_matrix_is_turned(rows: int, columns: int, count: int) -> None:
    x = draw(rows, rows, columns, dtype=torch.bfloat16)
    with threads(count):
        assert torch.equal(turned(x), x.t())


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_as_many_places_are_dropped_as_asked_for_and_none_knows_of_another(probability: float) -> None:
    rows, columns = 1000, 403
    ones, zeros = torch.ones(rows, columns, dtype=torch.bfloat16), torch.zeros(rows, columns)

    def places(key: int) -> Tensor:
        dropped = Dropped(key, threshold_of(probability), scale_of(probability))
        return (add_normalise(zeros, ones, zeros[0], ones[0].float(), zeros[0], EPSILON, dropped).sum == 0).double()

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


def all_of(count: int, size: int = 37) -> tuple[list[Tensor], list[Tensor]]:
    """What every kernel makes with so many threads, and what of it is added up over rows."""
    dropped = Dropped(11, threshold_of(0.1), scale_of(0.1))
    x, y, bias, weight, shift = rows_for(1, size, size)
    scores, by = draw(2, 2, 4, size, size, dtype=torch.bfloat16)
    with threads(count):
        made = add_normalise(x, y, bias, weight, shift, EPSILON, dropped)
        by_x, by_y, *by_vectors = add_normalise_back(y.float(), y, made.sum, made.moments, weight, dropped)
        odds = softmax_(scores, torch.tensor([size, 5]), dropped)
        went_on = softmax_back_(by, scores, True)
        by_inner, by_bias = cpu_kernels.activation_back(y, made.narrow, slopes("gelu"))
        loss, right, by_scores = cpu_kernels.cross_entropy(y, torch.arange(size) - 3, True)
    alone = [*made, odds, scores, by, went_on, turned(y), by_x, by_y, by_inner, right, by_scores]
    return alone, [*by_vectors, by_bias, loss]


def test_the_same_threads_give_the_same_bits_and_any_do_where_nothing_is_added_over_rows() -> None:
    alone, added = all_of(1)
    for count in (1, 2, 3, 16):
        found, sums = all_of(count)
        again, same_sums = all_of(count)
        assert all(map(torch.equal, [*found, *sums], [*again, *same_sums]))
        assert all(map(torch.equal, found, alone))
        torch.testing.assert_close(sums, added)


def test_bits_do_not_depend_on_where_tensors_lie() -> None:
    """A compiler may let a loop begin where memory is aligned, which would change the order of a sum."""
    given_ = rows_for(1, 5, 131)
    dropped = Dropped(11, threshold_of(0.1), scale_of(0.1))

    def moved(tensor: Tensor, places: int) -> Tensor:
        return torch.cat([tensor.new_zeros(places), tensor.reshape(-1)])[places:].view(tensor.shape)

    def made(places: int) -> list[Tensor]:
        there = [moved(each, places) for each in given_]
        forth = add_normalise(*there, EPSILON, dropped)
        sums, by = moved(forth.sum, places), moved(there[1], places)
        scores, by_odds = (moved(by[None, :, :5], places) for _ in range(2))
        odds = softmax_(scores, torch.tensor([4]), dropped)
        back = [*add_normalise_back(None, by, sums, forth.moments, there[3], dropped), by_odds]
        back += [softmax_back_(by_odds, scores, True), *cpu_kernels.activation_back(by, there[1], slopes("gelu"))]
        loss, _, by_scores = cpu_kernels.cross_entropy(by, torch.arange(5), True)
        return [*forth, *back, odds, scores, loss, by_scores]

    at_a_round_address = made(0)
    for places in (1, 3, 8):
        assert all(map(torch.equal, made(places), at_a_round_address))


def test_threads_of_python_may_call_at_once() -> None:
    alone, found = [*chain(*all_of(2))], [[] for _ in range(4)]

    def call(results: list[list[Tensor]]) -> None:
        results += [[*chain(*all_of(2))] for _ in range(8)]

    callers = [threading.Thread(target=call, args=(each,)) for each in found]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert [len(each) for each in found] == [8] * 4
    assert all(all(map(torch.equal, results, alone)) for each in found for results in each)


@pytest.mark.parametrize("value", [math.nan, -math.nan, math.inf, -math.inf])
def test_what_is_no_number_goes_through_its_own_row_alone(value: float) -> None:
    x, y, bias, weight, shift = rows_for(1, 3, 20)
    for harmed in (x, y):
        before = harmed[1, 4].clone()
        harmed[1, 4] = value
        made = add_normalise(x, y, bias, weight, shift, EPSILON, NONE)
        assert made.out.isnan().all(1).tolist() == made.narrow.isnan().all(1).tolist() == [False, True, False]
        assert made.out[::2].isfinite().all()
        by_x, by_y, *_ = add_normalise_back(made.out, None, made.sum, made.moments, weight, NONE)
        assert by_x.isnan().all(1).tolist() == by_y.isnan().all(1).tolist() == [False, True, False]
        harmed[1, 4] = before
    scores = draw(3, 1, 20, 20, dtype=torch.bfloat16)
    scores[0, 1, 4], scores[0, 2, 19] = value, math.nan
    lengths = torch.tensor([19])  # the last column is padding, whatever is there
    out = softmax_(scores, lengths, Dropped(1, threshold_of(0.5), 2.0))
    harmless = value == -math.inf
    assert out.isnan().any(-1)[0].tolist() == [row == 1 and not harmless for row in range(20)]
    assert harmless or scores[0, 1, :19].isnan().all()
    back = torch.ones_like(out)
    went_on = softmax_back_(back, scores, True)
    assert torch.equal(went_on.isnan(), out.isnan())
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
    odds = softmax_(scores, torch.tensor([3]), NONE)
    third = float(torch.tensor(1 / 3).bfloat16())
    assert odds[0, :, 0].tolist() == [1.0, 1.0, third]
    assert float(odds[0, 0, 1]) == pytest.approx(math.exp(-70), rel=2**-8, abs=0)
    assert not odds[0, 0, 2], "and a number too small to count is none"
    assert not odds[0, 1, 1:].any()
    assert odds[0, 2].tolist() == [third] * 3


def test_only_tensors_that_the_kernels_read_aright_are_theirs() -> None:
    x, y = draw(1, 4, 6), draw(2, 4, 6, dtype=torch.bfloat16)
    assert cpu_kernels.can_take(y, x)
    assert not cpu_kernels.can_take(y.half(), x)
    assert not cpu_kernels.can_take(x, x)
    assert not cpu_kernels.can_take(y.t(), x)
    assert not cpu_kernels.can_take(y, x[:, ::2])
    assert not cpu_kernels.can_take(y[:1].expand(4, 6), x)
    assert not cpu_kernels.can_take(y.to("meta"), x)
    with kernels_unused():
        assert not cpu_kernels.can_take(y, x)
    assert cpu_kernels.can_take(y, x)
