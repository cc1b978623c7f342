"""Copies of weights in the compute dtype: as new as the weights, and transparent to gradients."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch.nn.functional import linear

from bertsmith.model.copies import _copies, compute_copy
from bertsmith.model.linear import Linear, joined_linear
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from made_models import distance, drawn_inputs, drawn_model, small_config

X = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))


def maps(count: int = 3) -> torch.nn.ModuleList:
    torch.manual_seed(1)
    return torch.nn.ModuleList(Linear(4, 4) for _ in range(count))


def expected(x: torch.Tensor, those: torch.nn.ModuleList) -> torch.Tensor:
    return torch.cat([linear(x, each.weight.to(x.dtype), each.bias.to(x.dtype)) for each in those], dim=-1)


def step_of(kind):
    def change(those):
        optimizer = kind(parameter_groups(those, 0.01))
        optimizer.set_learning_rate(0.1)
        joined_linear(X.bfloat16(), *those).float().square().sum().backward()
        optimizer.step()

    return change


class WritesToData(torch.optim.Optimizer):
    """As many optimizers outside PyTorch are written."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.data.sub_(0.5 * parameter.grad)


def step_of_another(kind, only=slice(None), **settings):
    def change(those):
        optimizer = kind(list(those.parameters())[only], **settings)
        expected(X, those).square().sum().backward()
        optimizer.step()

    return change


def in_place(those):
    with torch.no_grad():
        those[1].weight.mul_(2)
        those[2].bias.add_(1)


def other_tensor(those):
    for parameter in those.parameters():
        parameter.data = parameter.data + 1


def initialised(those):
    torch.nn.init.normal_(those[0].weight)


CHANGES = {
    "lamb": step_of(Lamb),
    "adamw": step_of(AdamW),
    "torch's own": step_of_another(torch.optim.SGD, lr=0.5),
    "torch's fused AdamW": step_of_another(torch.optim.AdamW, lr=0.5, fused=True),
    "torch's fused SGD": step_of_another(torch.optim.SGD, lr=0.5, fused=True),
    "fused, of the last map only": step_of_another(torch.optim.SGD, slice(4, None), lr=0.5, fused=True),
    "one that writes to .data": step_of_another(WritesToData),
    "load_state_dict": lambda those: those.load_state_dict(
        torch.nn.ModuleList(Linear(4, 4) for _ in those).state_dict()
    ),
    "load_state_dict, assigned": lambda those: those.load_state_dict(
        torch.nn.ModuleList(Linear(4, 4) for _ in those).state_dict(), assign=True
    ),
    "in place": in_place,
    "another tensor": other_tensor,
    "initialised": initialised,
    "there and back in float64": lambda those: in_place(those.double().float()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_weights_is_seen(change, dtype):
    those, x = maps(), X.to(dtype)
    before = joined_linear(x, *those)
    torch.testing.assert_close(before, expected(x, those))
    CHANGES[change](those)
    after = joined_linear(x, *those)
    assert not torch.equal(after, before)
    torch.testing.assert_close(after, expected(x, those))
    torch.testing.assert_close(those[1](x), linear(x, those[1].weight.to(dtype), those[1].bias.to(dtype)))


def test_copies_are_kept_while_weights_stay():
    those = maps()
    weights = [each.weight for each in those]
    kept = _copies.of(weights, torch.bfloat16)
    joined_linear(X.bfloat16(), *those).float().sum().backward()
    assert _copies.of(weights, torch.bfloat16) is kept


def test_gradients_of_joined_maps_reach_each_parameter_in_its_own_dtype():
    those, twins = maps(), maps()
    down = torch.randn(5, 12)
    (joined_linear(X, *those) * down).sum().backward()
    (expected(X, twins) * down).sum().backward()
    for ours, theirs in zip(those.parameters(), twins.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    those.zero_grad()
    (joined_linear(X.bfloat16(), *those).float() * down).sum().backward()
    assert all(each.grad.dtype == torch.float32 for each in those.parameters())


def test_gradients_of_many_micro_batches_are_added_in_fp32():
    """1,000 additions of the same small bf16 gradient: in bf16 the sum would stand still after some 256."""
    one = Linear(4, 4)
    x = torch.full((1, 4), 2**-8, dtype=torch.bfloat16)
    for _ in range(1000):
        one(x).float().sum().backward()
    torch.testing.assert_close(one.weight.grad, torch.full((4, 4), 1000 * 2**-8))


@pytest.mark.parametrize("compute", [None, torch.bfloat16], ids=str)
def test_two_models_alive_at_once_do_not_mix(compute):
    config = small_config()
    first, second = (drawn_model(config, seed, torch.float32, compute).eval() for seed in (1, 2))
    batch = drawn_inputs(config, [5, 9])

    def hidden(model):
        return model.encoder(batch.input_ids, batch.token_type_ids, batch.position_ids, batch.packed)

    alone = hidden(first)
    other = hidden(second)
    assert torch.equal(hidden(first), alone)
    assert distance(other.float(), alone.float()) > 0.1
    twin = copy.deepcopy(first)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(1.5)
    assert not torch.equal(hidden(twin), alone)
    assert torch.equal(hidden(first), alone)


def test_weights_that_lie_side_by_side_by_chance_are_joined_as_any_others():
    """As two blocks of an allocator may lie, of which neither may be read beyond its end."""
    memory = bytearray(2 * 64)
    both = [torch.frombuffer(memory, dtype=torch.float32, count=16, offset=each).view(4, 4) for each in (0, 64)]
    for number, each in enumerate(both):
        each.fill_(number + 1)
    assert torch.equal(_copies.of([torch.nn.Parameter(each) for each in both], torch.float32), torch.cat(both))


def test_copies_made_in_inference_mode_can_be_trained_with():
    those = maps()
    with torch.inference_mode():
        joined_linear(X, *those)
    joined_linear(X, *those).sum().backward()
    assert all(each.grad is not None for each in those.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_made_in_inference_mode_is_of_use_there(dtype):
    with torch.inference_mode():
        those, x = maps(), X.to(dtype)
        joined_linear(x, *those)
        in_place(those)
        torch.testing.assert_close(joined_linear(x, *those), expected(x, those))


def test_an_optimizer_leaves_the_copies_of_other_models():
    those, others = maps(), maps()
    weights = [each.weight for each in others]
    kept = _copies.of(weights, torch.bfloat16)
    CHANGES["torch's fused SGD"](those)
    assert _copies.of(weights, torch.bfloat16) is kept


def test_copies_go_with_their_parameters():
    gc.collect()
    before = len(_copies._kept)
    those = maps()
    joined_linear(X, *those)
    assert len(_copies._kept) == before + 2
    del those
    gc.collect()
    assert len(_copies._kept) == before


def test_without_gradients_the_copy_is_the_kept_one_itself():
    weights = [each.weight for each in maps()]
    with torch.no_grad():
        plain = compute_copy(torch.bfloat16, *weights)
    assert plain is _copies.of(weights, torch.bfloat16)
    copy = compute_copy(torch.bfloat16, *weights)
    assert copy.requires_grad
    assert torch.equal(copy, plain)


def test_the_copy_of_one_parameter_in_its_own_dtype_is_itself():
    weight = maps(1)[0].weight
    assert compute_copy(torch.float32, weight) is weight
