"""Dropout with masks of our own: the share, the scale, the key, and the gradient are those of dropout."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.model.cpu.masks import Dropped, kept_places, scale_of
from bertsmith.model.dropout import add_dropped, dropout

SHAPES = st.lists(st.integers(0, 7), min_size=1, max_size=3)
PROBABILITIES = st.floats(0.01, 0.99)
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@settings(deadline=None)
@given(SHAPES, PROBABILITIES, st.sampled_from(DTYPES), st.integers(0, 99))
def test_places_are_zeros_and_ones_that_the_seed_decides(
    shape: list[int], probability: float, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    places = kept_places(shape, probability, dtype)
    assert places.shape == torch.Size(shape)
    assert places.dtype == dtype
    assert bool(((places == 0) | (places == 1)).all())
    torch.manual_seed(seed)
    assert torch.equal(places, kept_places(shape, probability, dtype))
    torch.manual_seed(seed)
    assert torch.equal(places.double(), kept_places(shape, probability, torch.float64))


@pytest.mark.parametrize("probability", [0.1, 0.25, 0.5, 0.9])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_as_many_are_kept_as_asked_for_and_the_mean_stays(probability: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    places = kept_places([1000, 400], probability, dtype).double()
    deviation = (probability * (1 - probability) / places.numel()) ** 0.5
    assert float(places.mean()) == pytest.approx(1 - probability, abs=4 * deviation)
    assert float(places.mean()) * scale_of(probability) == pytest.approx(1, abs=5 * deviation / (1 - probability))
    # Neighbours, along rows and along columns, know nothing of each other.
    for a, b in ((places[:, 1:], places[:, :-1]), (places[1:], places[:-1])):
        both = float((a * b).mean())
        assert both == pytest.approx((1 - probability) ** 2, abs=8 * deviation)
    assert not torch.equal(places, kept_places([1000, 400], probability, dtype).double())


@settings(deadline=None)
@given(st.integers(1, 40), PROBABILITIES, st.sampled_from([torch.float64, torch.bfloat16]), st.integers(0, 99))
def test_a_sum_with_what_dropout_leaves(count: int, probability: float, narrow: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(count, 8, dtype=torch.float64, requires_grad=True)
    y = torch.randn(count, 8, dtype=narrow, requires_grad=True)
    down = torch.randn(count, 8, dtype=torch.float64)
    torch.manual_seed(seed)
    factors = kept_places([count, 8], probability, torch.float64) * scale_of(probability)
    torch.manual_seed(seed)
    out = add_dropped(x, y, probability, training=True)
    out.backward(down)
    assert torch.allclose(out, x + y.double() * factors, rtol=0, atol=1e-12)
    assert torch.equal(x.grad, down)
    assert torch.equal(y.grad, (down * factors).to(narrow))
    torch.manual_seed(seed)
    assert torch.equal(dropout(y.detach().double(), probability, training=True), y.detach().double() * factors)


def test_nothing_is_dropped_outside_training_or_with_a_probability_of_zero() -> None:
    x = torch.randn(5, 4)
    for probability, training in ((0.5, False), (0.0, True)):
        assert torch.equal(dropout(x, probability, training), x)
        assert torch.equal(add_dropped(x, x, probability, training), x + x)


def test_the_ends_of_the_probabilities() -> None:
    """Near 1 a place in 65,536 is kept; at 0 nothing is drawn, so that what is drawn later is the same."""
    assert scale_of(1 - 1e-9) == 1 << 16
    before = torch.get_rng_state()
    assert Dropped.draw(0.0) == Dropped(0, 0, 1.0)
    assert torch.equal(torch.get_rng_state(), before)


def test_places_are_the_same_in_a_program_that_names_another_device() -> None:
    drawn = []
    for device in ("cpu", "meta"):
        torch.manual_seed(0)
        with torch.device(device):
            drawn.append(kept_places([100], 0.5, torch.float32))
    assert torch.equal(*drawn)


def test_half_precision_is_rounded_once_and_its_scale_is_not() -> None:
    x = torch.full((200_000,), 0.75, dtype=torch.bfloat16, requires_grad=True)
    torch.manual_seed(0)
    out = dropout(x, 0.1, training=True)
    out.backward(torch.ones_like(out))
    wanted = torch.tensor(0.75 * scale_of(0.1)).bfloat16()
    assert set(out.tolist()) == {0.0, float(wanted)}
    assert set(x.grad.tolist()) == {0.0, float(torch.tensor(scale_of(0.1)).bfloat16())}
    wide = torch.full((200_000,), 0.9, dtype=torch.bfloat16)
    # 0.9 x 1.1111 is 0.9961 in bf16; with the scale rounded first it would be 0.9922.
    assert float(dropout(wide, 0.1, training=True).max()) == float((wide.float() * scale_of(0.1)).bfloat16()[0])
