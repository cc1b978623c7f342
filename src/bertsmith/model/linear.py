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

from bertsmith.model.activations import FUNCTIONS
from bertsmith.model.copies import compute_copy, plain_copy
from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.library import can_take
from bertsmith.model.cpu.products import transposed_product


class Linear(nn.Linear):
    """x[..., in] -> [..., out] in the dtype of x."""

    def forward(self, x: Tensor) -> Tensor:
        return product(x, [self.weight], [self.bias])

    def without_bias(self, x: Tensor) -> Tensor:
        """For what adds the bias itself."""
        return product(x, [self.weight])


def is_plain(module: nn.Module) -> bool:
    """Whether a module is a linear map in fp32 and nothing else: no other class that somebody put in its place, and
    without a hook that waits for its call."""
    if type(module) is not Linear:
        return False
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return not any(hooks) and module.weight.dtype == module.bias.dtype == torch.float32


def activated(x: Tensor, linear: Linear, activation: str) -> Tensor:
    """The activation of linear(x): x[T, in] -> [T, out] in the dtype of x. activation: a name in `FUNCTIONS`."""
    if x.ndim == 2 and is_plain(linear) and can_take(x, linear.bias):
        copies = [plain_copy(x.dtype, each) for each in (linear.weight, linear.bias)]
        out: Tensor = _ActivatedProduct.apply(x, *copies, activation, linear.weight, linear.bias)  # type: ignore[no-untyped-call]
        return out
    return FUNCTIONS[activation](linear(x))


def joined_linear(x: Tensor, *maps: nn.Linear) -> Tensor:
    """The maps' outputs side by side, in one product: x[..., in] -> [..., out of all]."""
    return product(x, [each.weight for each in maps], [each.bias for each in maps])


def product(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] = ()) -> Tensor:
    """x W + b in the dtype of x, for weights [out, in] and biases [out], each joined along their first axis; without
    biases x W alone."""
    if x.device.type != "cpu" or x.dtype == weights[0].dtype or torch.compiler.is_compiling():
        bias = compute_copy(x.dtype, *biases) if biases else None
        return functional.linear(x, compute_copy(x.dtype, *weights), bias)
    copies = plain_copy(x.dtype, *weights), plain_copy(x.dtype, *biases) if biases else None
    out: Tensor = _HalfProduct.apply(x, *copies, len(weights), *weights, *biases)  # type: ignore[no-untyped-call]
    return out


class _HalfProduct(torch.autograd.Function):
    """The product in half precision on a CPU, with or without a bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, weights: int, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rows, ctx.has_bias = [len(each) for each in parameters[:weights]], bias is not None
        ctx.dtype = parameters[0].dtype
        return functional.linear(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        flat = gradient.reshape(-1, gradient.shape[-1])
        grad_x, grad_weight = _gradients(ctx.needs_input_grad, flat, *ctx.saved_tensors)
        grad_weights = _parts(grad_weight, ctx.rows, ctx.dtype)
        grad_bias = flat.sum(0) if ctx.has_bias and grad_weight is not None else None
        grad_biases = _parts(grad_bias, ctx.rows, ctx.dtype) if ctx.has_bias else ()
        return grad_x, None, None, None, *grad_weights, *grad_biases


class _ActivatedProduct(torch.autograd.Function):
    """The product with its bias and the activation. Backward by the kernels, which sum the bias's gradient on their
    way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, activation: str, *parameters: Tensor) -> Tensor:
        before = functional.linear(x, weight, bias)
        ctx.save_for_backward(x, weight, before)
        ctx.activation = activation
        return FUNCTIONS[activation](before)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, before = ctx.saved_tensors
        grad_before, grad_bias = kernels.activation_backward(gradient.contiguous(), before, ctx.activation)
        grad_x, grad_weight = _gradients(ctx.needs_input_grad, grad_before, x, weight)
        return grad_x, None, None, None, None if grad_weight is None else grad_weight.float(), grad_bias


def _gradients(
    needs_gradient: Sequence[bool], gradient: Tensor, x: Tensor, weight: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of a product's input and of its weights, from that of its output [T, out].

    needs_gradient: of each argument of `forward`: x, then the copies and a constant, then parameters.
    """
    grad_x = torch.mm(gradient, weight).view(x.shape) if needs_gradient[0] else None
    return grad_x, transposed_product(gradient, x.reshape(-1, x.shape[-1])) if any(needs_gradient[4:]) else None


def _parts(gradient: Tensor | None, rows: list[int], dtype: torch.dtype) -> Sequence[Tensor | None]:
    """The gradients of parameters that were joined. A lone one is no view, so that autograd may add to it in place."""
    if gradient is None:
        return [None] * len(rows)
    wide = gradient.to(dtype)
    return torch.split(wide, rows) if len(rows) > 1 else [wide]
