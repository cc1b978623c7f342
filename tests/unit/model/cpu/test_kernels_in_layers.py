"""What calls the C++ kernels, with them and without: sum and norm, and attention, forth and back, for odd gradients."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from bertsmith.base.layout import Layout
from bertsmith.model.activations import FUNCTIONS
from bertsmith.model.attention.blocks import HeadBlocks, block_attention
from bertsmith.model.cpu import kernels as cpu_kernels
from bertsmith.model.cpu.masks import scale_of
from bertsmith.model.dropout import dropout
from bertsmith.model.linear import Linear, activated
from bertsmith.model.losses import cross_entropy_sum
from bertsmith.model.residual import LayerNorm, add_mapped
from made_kernels import kernels_unused
from made_models import distance, drawn_inputs, drawn_model, small_config

BF16, FP32 = torch.bfloat16, torch.float32
both_dtypes = pytest.mark.parametrize("dtype", [BF16, FP32], ids=str)
# How far gradients may be from those of fp32 or wider.
FAR = {BF16: 0.03, FP32: 1e-5}
WIDTH, HEADS, MAPPED = 24, 3, 40
LENGTHS = [7, 1, 0, 33, 20, 33]
GRADIENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "whole": lambda x: x,
    "expanded over rows": lambda x: x[:1].expand_as(x),
    "expanded over columns": lambda x: x[:, :1].expand_as(x),
    "transposed": lambda x: x.t().contiguous().t(),
}


def inputs(tokens: int, dtype: torch.dtype = BF16) -> tuple[Tensor, Tensor, Linear, LayerNorm]:
    """x, what is mapped, the map and the norm; the weights are numbers of bf16."""
    torch.manual_seed(tokens)
    linear, norm = Linear(MAPPED, WIDTH), LayerNorm(WIDTH)
    for each in (linear.weight, linear.bias, norm.weight, norm.bias):
        each.data = torch.randn(each.shape).bfloat16().float()
    return torch.randn(tokens, WIDTH), torch.randn(tokens, MAPPED).to(dtype), linear, norm


@both_dtypes
@pytest.mark.parametrize("through", ["out", "narrow", "both"])
@pytest.mark.parametrize(
    "frozen", [(), ("x",), ("given",), ("weight", "shift"), ("x", "given", "bias", "map")], ids=str
)
def test_map_sum_and_norm_have_the_gradients_of_fp32(
    both_ways: str, dtype: torch.dtype, through: str, frozen: tuple[str, ...]
) -> None:
    used = [place for place, name in enumerate(("out", "narrow")) if through in (name, "both")]
    for tokens, shape in product((0, 1, 5), GRADIENTS.values()):
        x, given, linear, norm = inputs(tokens, dtype)
        downs = shape(torch.randn(tokens, WIDTH)), shape(torch.randn(tokens, WIDTH).to(dtype))
        leaves = {"x": x, "given": given, "map": linear.weight, "bias": linear.bias}
        leaves |= {"weight": norm.weight, "shift": norm.bias}
        for name, leaf in leaves.items():
            leaf.requires_grad_(name not in frozen)
        learnt = {name: leaf for name, leaf in leaves.items() if name not in frozen}
        made = add_mapped(x, given, linear, norm, 0.0)
        y = functional.linear(given.float(), linear.weight, linear.bias)
        exact = functional.layer_norm(x + y, (WIDTH,), norm.weight, norm.bias, norm.eps)
        assert [each.dtype for each in made] == [FP32, dtype]
        torch.testing.assert_close(made[0], exact, rtol=FAR[dtype], atol=2 * FAR[dtype])
        torch.testing.assert_close(made[1], made[0].to(dtype), rtol=0, atol=0)
        found = torch.autograd.grad([made[each] for each in used], learnt.values(), [downs[each] for each in used])
        wanted = torch.autograd.grad(exact, learnt.values(), sum(downs[each].float() for each in used))
        for name, ours, theirs in zip(learnt, found, wanted, strict=True):
            assert ours.dtype == leaves[name].dtype
            if tokens:
                assert distance(ours.double(), theirs.double()) < FAR[dtype], name


@pytest.mark.parametrize("change", ["x is bf16", "given is transposed", "weights are float64", "in a gap"])
def test_what_the_kernels_cannot_read_is_left_to_operators(kernels: None, change: str) -> None:
    x, given, linear, norm = inputs(5)
    if change == "x is bf16":
        x = x.bfloat16()
    elif change == "given is transposed":
        given = given.t().contiguous().t()
    elif change == "weights are float64":
        norm, linear = norm.double(), linear.double()
    else:
        x = torch.cat([x, x], 1)[:, :WIDTH]
    y = functional.linear(given.double(), linear.weight.double(), linear.bias.double())
    exact = functional.layer_norm(x.double() + y, (WIDTH,), norm.weight.double(), norm.bias.double(), norm.eps)
    torch.testing.assert_close(add_mapped(x, given, linear, norm, 0.0)[0].double(), exact, rtol=0.05, atol=0.05)


@both_dtypes
@pytest.mark.parametrize("activation", FUNCTIONS)
@pytest.mark.parametrize("frozen", [(), ("x",), ("weight", "bias")], ids=str)
def test_a_map_and_its_activation_have_the_gradients_of_fp32(
    both_ways: str, dtype: torch.dtype, activation: str, frozen: tuple[str, ...]
) -> None:
    for tokens, shape in product((0, 1, 5, 600), GRADIENTS.values()):
        _, x, linear, _ = inputs(tokens, dtype)
        leaves = {"x": x, "weight": linear.weight, "bias": linear.bias}
        for name, leaf in leaves.items():
            leaf.requires_grad_(name not in frozen)
        learnt = {name: leaf for name, leaf in leaves.items() if name not in frozen}
        down = shape(torch.randn(tokens, WIDTH).to(dtype))
        found = activated(x, linear, activation)
        exact = FUNCTIONS[activation](functional.linear(x.float(), linear.weight, linear.bias))
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), exact, rtol=FAR[dtype], atol=2 * FAR[dtype])
        ours = torch.autograd.grad(found, learnt.values(), down)
        theirs = torch.autograd.grad(exact, learnt.values(), down.float())
        for name, our, their in zip(learnt, ours, theirs, strict=True):
            assert our.dtype == leaves[name].dtype
            if tokens:
                assert distance(our.double(), their.double()) < FAR[dtype], name


@pytest.mark.parametrize("where", ["map", "activation"])
def test_a_hook_on_a_map_is_called_and_what_stands_in_its_place_is_used(both_ways: str, where: str) -> None:
    """As adapters do that are put around a model."""
    x, given, linear, norm = inputs(5)
    given.requires_grad_()
    square = Linear(MAPPED, WIDTH)
    seen: list[int] = []

    def run(module: Any) -> Tensor:
        return add_mapped(x, given, module, norm, 0.0)[0] if where == "map" else activated(given, module, "gelu")

    linear.register_forward_hook(lambda *_: seen.append(1))
    run(linear)
    assert seen == [1]
    linear.register_full_backward_hook(lambda *_: seen.append(2))
    run(linear).float().sum().backward()
    assert seen == [1, 1, 2]
    standing_in = torch.nn.Sequential(square)
    torch.testing.assert_close(run(standing_in), run(square), rtol=2**-6, atol=2**-5)


def test_labels_of_another_dtype_are_read_as_without_kernels(both_ways: str) -> None:
    scores = torch.randn(3, 10).bfloat16()
    labels = torch.tensor([1, 2, 3])
    narrow, usual = cross_entropy_sum(scores, labels.int()), cross_entropy_sum(scores, labels)
    torch.testing.assert_close(narrow.loss, usual.loss)
    assert narrow.right == usual.right


def test_a_loss_is_not_differentiated_twice(both_ways: str) -> None:
    scores = torch.randn(3, 10).bfloat16().requires_grad_()
    loss = cross_entropy_sum(scores, torch.tensor([1, 2, 3])).loss
    (once,) = torch.autograd.grad(loss.square(), scores, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        once.float().sum().backward()


def attended(dropout: float = 0.3, lengths: list[int] = LENGTHS, dtype: torch.dtype = BF16) -> tuple[Tensor, Tensor]:
    """qkv, and what attention makes of it."""
    layout = Layout.from_lengths(lengths)
    torch.manual_seed(1)
    qkv = torch.randn(layout.tokens, 3, WIDTH).to(dtype).requires_grad_()
    return qkv, block_attention(qkv, HEADS, HeadBlocks.of(layout, HEADS, torch.device("cpu")), dropout)


def exact_attention(qkv: Tensor, lengths: list[int]) -> Tensor:
    """One sequence and head at a time, in float64."""
    outs, offsets = [], np.cumsum([0, *lengths])
    for start, end in pairwise(offsets):
        q, k, v = (part.reshape(-1, HEADS, WIDTH // HEADS).transpose(0, 1) for part in qkv[start:end].unbind(1))
        outs.append(functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).reshape(-1, WIDTH))
    return torch.cat(outs)


@both_dtypes
@pytest.mark.parametrize("shape", GRADIENTS)
@pytest.mark.parametrize("lengths", [LENGTHS, [0], [1], [5, 5]], ids=str)
def test_attention_has_the_gradients_of_float64(
    both_ways: str, dtype: torch.dtype, shape: str, lengths: list[int]
) -> None:
    qkv, out = attended(0.0, lengths, dtype)
    down = GRADIENTS[shape](torch.randn(out.shape).to(dtype))
    wide = qkv.detach().double().requires_grad_()
    exact = exact_attention(wide, lengths)
    found, wanted = torch.autograd.grad(out, qkv, down)[0], torch.autograd.grad(exact, wide, down.double())[0]
    torch.testing.assert_close(out.double(), exact, rtol=FAR[dtype], atol=FAR[dtype])
    torch.testing.assert_close(found.double(), wanted, rtol=FAR[dtype], atol=FAR[dtype])
    if len(wanted):
        assert distance(found.double(), wanted) < FAR[dtype] / 3


def test_a_graph_may_be_walked_again_and_gives_the_same(both_ways: str) -> None:
    qkv, out = attended()
    x, _, _, norm = inputs(len(out))
    linear = Linear(WIDTH, WIDTH)
    made, narrow = add_mapped(x.requires_grad_(), activated(out, linear, "gelu"), linear, norm, 0.3)
    loss = made.square().sum() + narrow.float().sum()
    leaves = (qkv, x, linear.weight, linear.bias, norm.weight, norm.bias)
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    kept = [each.clone() for each in first]
    second = torch.autograd.grad(loss, leaves)
    assert all(map(torch.equal, kept, second))
    assert all(map(torch.equal, kept, first)), "and leaves alone what it gave"


def test_the_gradient_of_dropout_is_that_of_the_places_that_were_kept(both_ways: str) -> None:
    """Attention is linear in its values: with the same places dropped its gradient is read off differences."""
    torch.manual_seed(5)
    layout = Layout.from_lengths([9, 4])
    where = HeadBlocks.of(layout, HEADS, torch.device("cpu"))
    qkv = torch.randn(13, 3, WIDTH).bfloat16()

    def dropped_out(values: Tensor) -> Tensor:
        torch.manual_seed(7)
        return block_attention(torch.cat([qkv[:, :2], values[:, None]], 1), HEADS, where, 0.4)

    values, down = torch.zeros(13, WIDTH).bfloat16().requires_grad_(), torch.randn(13, WIDTH).bfloat16()
    (gradient,) = torch.autograd.grad(dropped_out(values), values, down)
    kept = 0
    for slot in range(13):
        one = torch.zeros(13, WIDTH).bfloat16()
        one[slot] = 1.0
        through = dropped_out(one)
        by_head = (through.float() * down.float()).view(13, HEADS, -1).sum(0)
        found = gradient[slot].float().view(HEADS, -1)
        torch.testing.assert_close(found.sum(-1), by_head.sum(-1), rtol=0.02, atol=0.06)
        kept += int(through.count_nonzero())
    assert 0.4 < kept / (WIDTH * (9 * 9 + 4 * 4)) < 0.8


def test_a_layer_that_is_compiled_does_without_them(kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile traces what calls the kernels as operators; they would be a hole in its graph."""
    x, given, linear, norm = inputs(5)
    square = Linear(WIDTH, MAPPED)

    def both(a: Tensor, b: Tensor) -> Tensor:
        out, narrow = add_mapped(a, b, linear, norm, 0.0)
        return out + narrow.float() + activated(narrow, square, "gelu").float().sum()

    eager = both(x, given)
    monkeypatch.setattr(cpu_kernels, "add_normalise", None)
    monkeypatch.setattr(cpu_kernels, "activation_backward", None)
    traced = torch.compile(both, backend="eager", fullgraph=True)(x, given)
    torch.testing.assert_close(traced, eager, rtol=2**-6, atol=2**-4)


@both_dtypes
def test_dropout_and_its_gradient_are_of_the_same_places(both_ways: str, dtype: torch.dtype) -> None:
    for shape in ((400, 30), (20, 20, 30)):
        torch.manual_seed(3)
        x = torch.ones(shape, dtype=dtype, requires_grad=True)
        out = dropout(x, 0.3, training=True)
        out.backward(torch.ones(()).to(dtype).expand(shape))
        assert set(out.unique().tolist()) == {0.0, float(torch.tensor(scale_of(0.3)).to(dtype))}
        assert torch.equal(x.grad, out)
        assert float((out == 0).float().mean()) == pytest.approx(0.3, abs=0.02)
        torch.manual_seed(3)
        assert torch.equal(dropout(x, 0.3, training=True), out)


def test_in_fp32_results_with_and_without_kernels_agree_within_rounding(kernels: None) -> None:
    """The loss and every gradient of a whole step without dropout; no PyTorch operator of the other way is called."""
    model = drawn_model(small_config(hidden_size=32, intermediate_size=64), dtype=FP32, deviation=0.1)
    batch = drawn_inputs(model.config, [17, 9, 24, 3, 0, 21, 22])

    def results() -> dict[str, Tensor]:
        model.zero_grad()
        masked, pairs = model.losses(batch)
        (masked.loss + pairs.loss).backward()
        found = {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}
        return found | {"masked": masked.loss.detach(), "pairs": pairs.loss.detach()}

    with_them = results()
    with kernels_unused():
        without = results()
    assert with_them.keys() == without.keys()
    assert any(not torch.equal(with_them[name], without[name]) for name in without)
    largest = max(float(each.norm()) for each in without.values())
    for name, each in without.items():
        # The gradient of a key's bias is 0 but for rounding.
        close = 1e-5 * float(each.norm()) + 1e-6 * largest
        assert float((with_them[name] - each).norm()) < close, name


def test_a_step_as_a_whole_is_no_further_from_fp32_with_kernels(kernels: None) -> None:
    """The same dropout-free batch; and a frozen half, a second backward pass and no grad change nothing of that."""
    config = small_config(hidden_size=32, intermediate_size=64)
    batch = drawn_inputs(config, [17, 9, 24, 3, 0, 21, 22])

    def gradient(compute: torch.dtype | None) -> Tensor:
        model = drawn_model(config, dtype=torch.float32, compute=compute, deviation=0.1)
        model.encoder.embeddings.requires_grad_(False)
        model.encoder.layers[0].attention.requires_grad_(False)
        with torch.no_grad():
            model.losses(batch)
        masked, pairs = model.losses(batch)
        (masked.loss + pairs.loss).backward(retain_graph=True)
        (masked.loss + pairs.loss).backward()
        return torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])

    exact, with_them = gradient(None), gradient(torch.bfloat16)
    with kernels_unused():
        without = gradient(torch.bfloat16)
    assert not torch.equal(with_them, without)
    assert distance(with_them, exact) < min(0.05, 1.25 * distance(without, exact))
