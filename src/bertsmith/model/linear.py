"""Linear maps whose parameters are fp32 masters and whose products run in the dtype of the input.

Legend: T token slots, "in" and "out" the widths of a map.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from bertsmith.base import device
from bertsmith.model.activations import BY_TANH, FUNCTIONS, gelu_by_tanh
from bertsmith.model.copies import are_gathered, compute_copy, plain_copy, to_save
from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.library import can_take
from bertsmith.model.cpu.products import transposed_product
from bertsmith.model.triton.gelu import can_run, gelu_backward


class Linear(nn.Linear):
    """x[..., in] -> [..., out] in the dtype of x."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, [self.weight], [self.bias])


def is_plain(module: nn.Module, compute: torch.dtype) -> bool:
    """Whether a module is a linear map in fp32 and nothing else: no other class that somebody put in its place, and
    without a hook that waits for its call. compute: the dtype of products, in which its weight may be already.
    """
    if type(module) is not Linear:
        return False
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    wide = module.weight.dtype in (torch.float32, compute) and module.bias.dtype == torch.float32
    return not any(hooks) and wide


def activated(x: Tensor, linear: Linear, activation: str) -> Tensor:
    """The activation of linear(x): x[T, in] -> [T, out] in the dtype of x. activation: a name in `FUNCTIONS`."""
    if x.ndim == 2 and is_plain(linear, x.dtype) and can_take(x, linear.bias):
        out: Tensor = _ActivatedProduct.apply(x, activation, linear.weight, linear.bias)  # type: ignore[no-untyped-call]
        return out
    in_graph = torch.compiler.is_compiling() and device.is_on_gpu(x)
    if in_graph and activation in BY_TANH and can_run(x) and is_plain(linear, x.dtype):
        before = product(x, [linear.weight], [linear.bias.detach()])
        out = _GeluInGraph.apply(before, linear.bias, BY_TANH[activation])  # type: ignore[no-untyped-call]
        return out
    return FUNCTIONS[activation](linear(x))


def joined_linear(x: Tensor, *maps: nn.Linear) -> Tensor:
    """The maps' outputs side by side, in one product: x[..., in] -> [..., out of all]."""
    return product(x, [each.weight for each in maps], [each.bias for each in maps])


def product(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> Tensor:
    """x W + b in the dtype of x, for weights [out, in] and biases [out], each joined along their first axis; without
    biases x W alone."""
    if torch.compiler.is_compiling() and device.is_on_gpu(x) and x.ndim == 2 and x.dtype != weights[0].dtype:
        copy = compute_copy(x.dtype, *(each.detach() for each in weights))
        bias = compute_copy(biases[0].dtype, *biases) if biases else None
        made: Tensor = _ProductInGraph.apply(x, copy, bias, *weights)  # type: ignore[no-untyped-call]
        return made
    if torch.compiler.is_compiling() or not _needs_own_product(x, weights):
        bias = compute_copy(x.dtype, *biases) if biases else None
        return functional.linear(x, compute_copy(x.dtype, *weights), bias)
    out: Tensor = _HalfProduct.apply(x, len(weights), *weights, *biases)  # type: ignore[no-untyped-call]
    return out


def _needs_own_product(x: Tensor, weights: Sequence[Tensor]) -> bool:
    """On a CPU in half precision; and where a copy is made of gathered weights, which autograd would save."""
    narrow = x.dtype != weights[0].dtype
    return (narrow and x.device.type == "cpu") or ((narrow or len(weights) > 1) and are_gathered(weights))


class _ProductInGraph(torch.autograd.Function):
    """The product with a copy of weights in half precision, in a compiled step on a GPU. The gradients of weights leave
    their product in fp32: nothing rounds them, and no kernel makes them fp32 afterwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, copy: Tensor, bias: Tensor | None, *weights: Tensor) -> Tensor:
        ctx.save_for_backward(x, copy)
        ctx.rows = [len(each) for each in weights]
        return functional.linear(x, copy, None if bias is None else bias.to(x.dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, copy = ctx.saved_tensors
        grad_weight = torch.mm(gradient.t(), x, out_dtype=torch.float32)
        return gradient @ copy, None, gradient.sum(0, dtype=torch.float32), *torch.split(grad_weight, ctx.rows)


class _HalfProduct(torch.autograd.Function):
    """The product with copies of weights, with or without a bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weights: int, *parameters: Tensor) -> Tensor:
        own, biases = parameters[:weights], parameters[weights:]
        weight, bias = plain_copy(x.dtype, *own), plain_copy(x.dtype, *biases) if biases else None
        ctx.save_for_backward(x, *to_save(weight, *own))
        ctx.rows, ctx.dtype = [len(each) for each in own], own[0].dtype
        ctx.bias_dtype = biases[0].dtype if biases else None
        return functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        flat = gradient.reshape(-1, gradient.shape[-1])
        grad_x, grad_weight = _gradients(ctx.needs_input_grad, flat, *ctx.saved_tensors)
        grad_weights = _parts(grad_weight, ctx.rows, ctx.dtype)
        if ctx.bias_dtype is None:
            return grad_x, None, *grad_weights
        grad_bias = flat.sum(0) if grad_weight is not None else None
        return grad_x, None, *grad_weights, *_parts(grad_bias, ctx.rows, ctx.bias_dtype)


class _ActivatedProduct(torch.autograd.Function):
    """The product with its bias and the activation. Backward by the kernels, which sum the bias's gradient on their
    way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, activation: str, weight: Tensor, bias: Tensor) -> Tensor:
        copy = plain_copy(x.dtype, weight)
        before = functional.linear(x, copy, plain_copy(x.dtype, bias))
        ctx.save_for_backward(before, x, *to_save(copy, weight))
        ctx.activation, ctx.dtype = activation, weight.dtype
        return FUNCTIONS[activation](before)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        before, x, *saved = ctx.saved_tensors
        grad_before, grad_bias = kernels.activation_backward(gradient.contiguous(), before, ctx.activation)
        grad_x, grad_weight = _gradients(ctx.needs_input_grad, grad_before, x, *saved)
        return grad_x, None, None if grad_weight is None else grad_weight.to(ctx.dtype), grad_bias


class _GeluInGraph(torch.autograd.Function):
    """GELU of what a bias was added to, and that bias's gradient, which the compiler would sum by reading again what
    another kernel has just written."""

    @staticmethod
    def forward(ctx: Any, before: Tensor, bias: Tensor, by_tanh: bool) -> Tensor:
        ctx.save_for_backward(before)
        ctx.by_tanh = by_tanh
        return gelu_by_tanh(before) if by_tanh else functional.gelu(before)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        grad_before, sums = gelu_backward(gradient, *ctx.saved_tensors, ctx.by_tanh)
        return grad_before, sums.sum(0), None


def _gradients(
    needs_gradient: Sequence[bool], gradient: Tensor, x: Tensor, *saved: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of a product's input and of its weights, from that of its output [T, out].

    needs_gradient: of each argument of `forward`: x, a constant, then parameters. saved: what `to_save` gave.
    """
    grad_x = torch.mm(gradient, plain_copy(x.dtype, *saved)).view(x.shape) if needs_gradient[0] else None
    return grad_x, transposed_product(gradient, x.reshape(-1, x.shape[-1])) if any(needs_gradient[2:]) else None


def _parts(gradient: Tensor | None, rows: list[int], dtype: torch.dtype) -> Sequence[Tensor | None]:
    """The gradients of parameters that were joined. A lone one is no view, so that autograd may add to it in place."""
    if gradient is None:
        return [None] * len(rows)
    wide = gradient.to(dtype)
    return torch.split(wide, rows) if len(rows) > 1 else [wide]
