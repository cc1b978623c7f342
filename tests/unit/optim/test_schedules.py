"""The learning-rate curves: their shape, and that no update goes to waste."""

import inspect

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.optim import schedules
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.lamb import Lamb
from bertsmith.optim.schedules import constant, cosine, linear, polynomial, warmup_stable_decay

CURVES = {
    "polynomial": lambda k, steps, share, base: polynomial(k, steps, share, 0.5, base),
    "linear": linear,
    "cosine": cosine,
    "warmup_stable_decay": lambda k, steps, share, base: warmup_stable_decay(k, steps, share, (1 - share) / 3, base),
    "constant": constant,
}


@pytest.mark.parametrize("name", CURVES)
@given(steps=st.integers(1, 400), share=st.floats(0, 1), base=st.floats(1e-6, 1.0), part=st.floats(0, 1))
def test_every_update_moves_the_weights_and_none_passes_the_base(name, steps, share, base, part):
    rates = [CURVES[name](k, steps, share, base) for k in range(1, steps + 1)]
    between = [CURVES[name](k + part, steps, share, base) for k in range(1, steps)]  # where time drives a run
    assert all(0 < rate <= base * (1 + 1e-12) for rate in between)
    assert all(0 < rate <= base * (1 + 1e-12) for rate in rates)
    warm = [rate for k, rate in enumerate(rates, start=1) if k <= share * steps]
    assert warm == sorted(warm)
    after = rates[len(warm) :]
    assert after == sorted(after, reverse=True)


def test_nvidias_curve_of_phase_two():
    """Its figures: 1,563 updates, warm-up 0.128, base 4e-3, power 0.5; update k of ours is read one update earlier."""
    steps, share, base = 1563, 0.128, 4e-3
    assert polynomial(100, steps, share, 0.5, base) == pytest.approx(base * (100 / steps) / share)
    assert polynomial(801, steps, share, 0.5, base) == pytest.approx(base * (1 - 800 / steps) ** 0.5)
    assert polynomial(steps, steps, share, 0.5, base) == pytest.approx(base * (1 / steps) ** 0.5)


def test_the_base_is_reached_at_the_end_of_the_warm_up():
    for share, steps in ((0.1, 1000), (0.29, 100), (0.07, 100)):
        last = round(share * steps)
        for curve in CURVES.values():
            assert curve(last, steps, share, 1.0) == pytest.approx(1.0)


def test_linear_falls_in_equal_parts():
    rates = [linear(k, 10, 0.2, 1.0) for k in range(1, 11)]
    assert rates == pytest.approx([0.5, 1.0, 1.0, 7 / 8, 6 / 8, 5 / 8, 4 / 8, 3 / 8, 2 / 8, 1 / 8])


def test_a_cosine_is_that_of_transformers_one_update_earlier():
    transformers = pytest.importorskip("transformers")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    theirs = transformers.get_cosine_with_min_lr_schedule_with_warmup(optimizer, 20, 100, min_lr_rate=0.1)
    for update in range(1, 101):
        expected = theirs.lr_lambdas[0](update if update <= 20 else update - 1)
        assert cosine(update, 100, 0.2, 2.0) == pytest.approx(2.0 * expected)


def test_stable_until_the_decay_which_falls_as_one_minus_a_root():
    rates = [warmup_stable_decay(k, 100, 0.1, 0.2, 1.0) for k in range(1, 101)]
    assert rates[9:81] == [1.0] * 72
    assert rates[80:] == pytest.approx([1 - (k / 20) ** 0.5 for k in range(20)])
    assert [warmup_stable_decay(k, 100, 0.1, 0.0, 1.0) for k in (10, 100)] == [1.0, 1.0]


def test_no_schedule_is_left_out():
    there = {name for name, _ in inspect.getmembers(schedules, inspect.isfunction) if not name.startswith("_")}
    assert there == set(CURVES)


@pytest.mark.parametrize("kind", [Lamb, AdamW])
@pytest.mark.parametrize("name", CURVES)
@pytest.mark.parametrize(("steps", "share", "base"), [(1, 0.0, 5e-5), (3, 1.0, 6e-3), (1563, 0.128, 4e-3)])
def test_the_last_update_moves_the_weights(name, kind, steps, share, base):
    """Of a weight in fp32, by a real optimizer, for the first, third and last update of NVIDIA's second phase."""
    weight = torch.nn.Parameter(torch.linspace(-0.05, 0.05, 24).view(4, 6))
    optimizer = kind([{"params": [weight], "weight_decay": 0.01}])
    for update in {max(steps - 1, 1), steps}:
        before = weight.detach().clone()
        weight.grad = torch.linspace(1e-4, 1e-3, 24).view(4, 6)
        optimizer.set_learning_rate(CURVES[name](update, steps, share, base))
        optimizer.step()
    assert bool((weight != before).all())
