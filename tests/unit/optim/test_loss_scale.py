"""The loss scale against a plain Python model of it, and updates that do not see it."""

from __future__ import annotations

import io

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from bertsmith.optim.adamw import AdamW
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.optim.lamb import Lamb
from bertsmith.optim.loss_scale import LossScale

KINDS = [Lamb, AdamW]


def expected(scale: float, flags: list[bool], grow_every: int, floor: float, ceiling: float) -> list[tuple]:
    """(scale, good updates, skipped, sound) after each flag, by the words of the docstring."""
    good, skipped, found = 0, 0, []
    for finite in flags:
        sound = finite or scale > floor
        if finite:
            good += 1
            if good >= grow_every and 2 * scale <= ceiling:
                scale, good = 2 * scale, 0
        else:
            scale, good, skipped = max(scale / 2, floor), 0, skipped + 1
        found.append((scale, good, skipped, sound))
    return found


@given(
    exponent=st.integers(-2, 6),
    flags=st.lists(st.booleans(), max_size=40),
    grow_every=st.integers(1, 5),
    top=st.integers(0, 8),
)
@settings(max_examples=60, deadline=None)
def test_follows_its_words(exponent: int, flags: list[bool], grow_every: int, top: int) -> None:
    ceiling, floor = 2.0**top, 0.25
    scale = LossScale(initial=2.0**exponent, grow_every=grow_every, floor=floor, ceiling=ceiling)
    found = []
    for flag in flags:
        sound = bool(scale.update(torch.tensor(flag)))
        found.append((float(scale.scale), int(scale.good_updates), int(scale.skipped_updates), sound))
    assert found == expected(2.0**exponent, flags, grow_every, floor, ceiling)


def parameters(count: int = 3) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(4, 6, generator=generator)) for _ in range(count)]


def optimizer_of(kind: type[ClippedOptimizer], those: list[torch.nn.Parameter], **options: object) -> ClippedOptimizer:
    optimizer = kind([{"params": those, "weight_decay": 0.01}], **options)
    optimizer.set_learning_rate(0.01)
    return optimizer


def take(optimizer: ClippedOptimizer, those: list[torch.nn.Parameter], seed: int, size: float = 1.0) -> None:
    """An update from the gradient of a loss that is drawn from `seed`."""
    generator = torch.Generator().manual_seed(seed)
    optimizer.zero_grad()
    loss = sum((each * torch.randn(each.shape, generator=generator)).sum() for each in those) * size
    optimizer.scaled(loss).backward()
    optimizer.step()


@given(exponent=st.integers(-10, 30), limit=st.sampled_from([0.0, 0.1, 1.0, 1e6]), kind=st.sampled_from(KINDS))
@settings(max_examples=40, deadline=None)
def test_an_update_is_to_the_bit_that_of_the_loss_itself(exponent: int, limit: float, kind) -> None:
    """A power of two changes no mantissa, so neither the clipping nor the moments nor the weights may see it."""
    sides = []
    for loss_scale in (None, LossScale(initial=2.0**exponent, ceiling=2.0**40, grow_every=2)):
        those = parameters()
        optimizer = optimizer_of(kind, those, max_gradient_norm=limit, loss_scale=loss_scale)
        norms = []
        for seed in range(5):
            take(optimizer, those, seed)
            norms.append(float(optimizer.gradient_norm))
        sides.append((norms, those, optimizer))
    assert sides[0][0] == sides[1][0]
    assert all(torch.equal(a, b) for a, b in zip(sides[0][1], sides[1][1], strict=True))
    assert float(sides[1][2].loss_scale.scale) > 2.0**exponent, "it grew on the way"


@pytest.mark.parametrize("kind", KINDS)
def test_an_overflow_is_skipped_halves_and_goes_on(kind) -> None:
    those, untouched = parameters(), parameters()
    optimizer = optimizer_of(kind, those, loss_scale=LossScale(initial=2.0**100, ceiling=2.0**120))
    plain = optimizer_of(kind, untouched)
    for _ in range(3):
        take(optimizer, those, seed=0, size=2.0**30)
        assert bool(optimizer.sound)
    assert not bool(optimizer.finite)
    assert (float(optimizer.loss_scale.scale), int(optimizer.loss_scale.skipped_updates)) == (2.0**97, 3)
    assert all(torch.equal(a, b) for a, b in zip(those, untouched, strict=True))
    optimizer.loss_scale.scale.fill_(2.0**10)
    for side, its in ((optimizer, those), (plain, untouched)):
        take(side, its, seed=1)
    assert bool(optimizer.finite)
    assert all(torch.equal(a, b) for a, b in zip(those, untouched, strict=True)), "skipped steps leave no trace"


def test_an_overflow_at_the_floor_is_not_sound() -> None:
    those = parameters()
    optimizer = optimizer_of(Lamb, those, loss_scale=LossScale(initial=2.0, floor=1.0))
    sound = []
    for _ in range(2):
        for each in those:
            each.grad = torch.full_like(each, float("inf"))
        optimizer.step()
        sound.append(bool(optimizer.sound))
    assert sound == [True, False]
    assert float(optimizer.loss_scale.scale) == 1.0


def test_without_a_loss_scale_an_overflow_is_never_sound() -> None:
    those = parameters()
    optimizer = optimizer_of(Lamb, those)
    those[0].grad = torch.full_like(those[0], float("nan"))
    optimizer.step()
    assert not bool(optimizer.sound)
    optimizer.begin_step(65_536)
    loss = torch.tensor(3.0)
    assert optimizer.scaled(loss) is loss, "whatever the size of a step"


@pytest.mark.parametrize("scales", [True, False], ids=["a loss scale", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_state_survives_a_safe_load_to_the_bit(kind, scales: bool) -> None:
    those = parameters()
    optimizer = optimizer_of(kind, those, loss_scale=LossScale(initial=8.0, grow_every=3) if scales else None)
    for seed in range(2):
        take(optimizer, those, seed)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    others = [torch.nn.Parameter(each.detach().clone()) for each in those]
    second = optimizer_of(kind, others, loss_scale=LossScale(grow_every=3) if scales else None)
    second.load_state_dict(torch.load(file, weights_only=True))
    for seed in range(2, 6):
        take(optimizer, those, seed)
        take(second, others, seed)
    assert all(torch.equal(a, b) for a, b in zip(those, others, strict=True))
    if not scales:
        return
    found = [{name: float(each) for name, each in side.loss_scale.state_dict().items()} for side in (optimizer, second)]
    assert found[0] == found[1] == {"scale": 32.0, "good_updates": 0.0, "skipped_updates": 0.0}
    with pytest.raises(KeyError, match="loss_scale"):
        second.load_state_dict(optimizer_of(kind, parameters()).state_dict())


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_that_starts_afresh_is_as_a_new_one(kind) -> None:
    those = parameters()
    optimizer = optimizer_of(kind, those, loss_scale=LossScale(initial=8.0, grow_every=2))
    for seed in range(3):
        take(optimizer, those, seed)
    those[0].grad = torch.full_like(those[0], float("inf"))
    optimizer.step()
    take(optimizer, those, seed=3)
    optimizer.start_afresh()
    others = [torch.nn.Parameter(each.detach().clone()) for each in those]
    new = optimizer_of(kind, others, loss_scale=LossScale(initial=8.0, grow_every=2))
    for seed in range(4, 7):
        take(optimizer, those, seed)
        take(new, others, seed)
    assert all(torch.equal(a, b) for a, b in zip(those, others, strict=True))
    assert optimizer.loss_scale.state_dict() == new.loss_scale.state_dict()


class NoReads(TorchDispatchMode):
    """Fails where a tensor is read on the host, which on a card would wait for all that is queued."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function is not torch.ops.aten._local_scalar_dense.default, "a tensor is read on the host"
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", KINDS)
def test_an_update_reads_nothing_on_the_host(kind) -> None:
    those = parameters()
    optimizer = optimizer_of(kind, those, loss_scale=LossScale())
    with NoReads():
        take(optimizer, those, seed=0)
    with pytest.raises(AssertionError, match="read on the host"), NoReads():
        float(optimizer.gradient_norm)
