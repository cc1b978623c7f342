"""Linear maps whose parameters are fp32 masters and whose products run in the dtype of the input.

The half-precision copy of a weight is made once and kept until the optimizer changes the weight, and the gradient comes
back in fp32, so micro-batches are summed in fp32 however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.weak import WeakIdKeyDictionary

from bertsmith.model.activations import FUNCTIONS, slopes
from bertsmith.model.cpu import kernels as cpu_kernels
from bertsmith.model.cpu.products import mapped, multiplied, turned_product


class _Copies:
    """The last copy made of each group of parameters, and what it was made from."""

    def __init__(self) -> None:
        self._kept: Any = WeakIdKeyDictionary()

    def of(self, parameters: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """The parameters joined along their first axis, in `dtype`, without a gradient."""
        if any(each.is_inference() for each in parameters):  # such tensors do not tell that they were written to
            return _joined(parameters, dtype)
        first, others = parameters[0], tuple(parameters[1:])
        # A tensor that is put in a parameter's place, as a move to another device does, leaves its version as it was.
        versions = [(each._version, each.data_ptr(), each.device) for each in parameters]
        kept = self._kept.get(first)
        if kept is not None:
            kept_dtype, kept_versions, kept_others, copy = kept
            same = len(kept_others) == len(others) and all(a is b for a, b in zip(kept_others, others, strict=True))
            if same and kept_dtype == dtype and kept_versions == versions:
                return cast(Tensor, copy)
        joined = _joined(parameters, dtype)
        self._kept[first] = (dtype, versions, others, joined)
        return joined

    def forget(self, changed: Iterable[Tensor]) -> None:
        """Drops the copies of these parameters."""
        ids = {id(each) for each in changed}
        for first in [reference() for reference in self._kept.keyrefs()]:  # a list: other threads may add to it
            kept = self._kept.get(first, None) if first is not None else None
            if kept is not None and not ids.isdisjoint(map(id, (first, *kept[2]))):
                self._kept.pop(first, None)


def _joined(parameters: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    # A copy that was made in inference mode could never be trained with.
    with torch.inference_mode(False), torch.no_grad():
        rows, first = [len(each) for each in parameters], parameters[0]
        joined = torch.empty(sum(rows), *first.shape[1:], dtype=dtype, device=first.device)
        for part, each in zip(torch.split(joined, rows), parameters, strict=True):
            part.copy_(each)
    return joined


_copies = _Copies()


def _forget_stepped(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    _copies.forget(each for group in optimizer.param_groups for each in group["params"])


# PyTorch's fused optimizers, and those that write to `.data`, leave the versions of parameters as they were.
register_optimizer_step_post_hook(_forget_stepped)


class _Compute(torch.autograd.Function):
    """Stands for the joined copy in the graph; hands each parameter its part of the gradient, in its own dtype."""

    @staticmethod
    def forward(ctx, copy: Tensor, *parameters: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.rows = [len(each) for each in parameters]
        ctx.dtype = parameters[0].dtype
        return copy.view_as(copy)

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[no-untyped-def]
        return None, *torch.split(gradient.to(ctx.dtype), ctx.rows)


def compute_copy(dtype: torch.dtype, *parameters: Tensor) -> Tensor:
    """The parameters joined along their first axis, in `dtype`, with gradients that reach them."""
    if torch.compiler.is_compiling() or (len(parameters) == 1 and parameters[0].dtype == dtype):
        return torch.cat([each.to(dtype) for each in parameters]) if len(parameters) > 1 else parameters[0].to(dtype)
    copy: Tensor = _Compute.apply(_copies.of(parameters, dtype), *parameters)  # type: ignore[no-untyped-call]
    return copy


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
    if x.ndim == 2 and is_plain(linear) and cpu_kernels.can_take(x, linear.bias):
        copies = [_copies.of([each], x.dtype) for each in (linear.weight, linear.bias)]
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
    copies = _copies.of(weights, x.dtype), _copies.of(biases, x.dtype) if biases else None
    out: Tensor = _HalfProduct.apply(x, *copies, len(weights), *weights, *biases)  # type: ignore[no-untyped-call]
    return out


class _HalfProduct(torch.autograd.Function):
    """The product in half precision on a CPU, with or without a bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, weights: int, *parameters: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.rows, ctx.has_bias = [len(each) for each in parameters[:weights]], bias is not None
        ctx.dtype = parameters[0].dtype
        return mapped(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        flat = gradient.reshape(-1, gradient.shape[-1])
        by_x, by_weight = _back(ctx.needs_input_grad, flat, *ctx.saved_tensors)
        by_weights = _parts(by_weight, ctx.rows, ctx.dtype)
        by_bias = flat.sum(0) if ctx.has_bias and by_weight is not None else None
        return by_x, None, None, None, *by_weights, *(_parts(by_bias, ctx.rows, ctx.dtype) if ctx.has_bias else ())


class _ActivatedProduct(torch.autograd.Function):
    """The product with its bias and the activation, by the kernels, which sum the bias's gradient on their way."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, activation: str, *parameters: Tensor) -> Tensor:
        before = mapped(x, weight, bias)
        ctx.save_for_backward(x, weight, before)
        ctx.slopes = slopes(activation)
        return FUNCTIONS[activation](before)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, before = ctx.saved_tensors
        by_before, by_bias = cpu_kernels.activation_back(gradient.contiguous(), before, ctx.slopes)
        by_x, by_weight = _back(ctx.needs_input_grad, by_before, x, weight)
        return by_x, None, None, None, None if by_weight is None else by_weight.float(), by_bias


def _back(learns: Sequence[bool], by_out: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """The gradients of a product's input and of its weights, from that of its output [T, out].

    learns: which arguments want one: x, then three that never do, then parameters.
    """
    by_x = multiplied(by_out, weight).view(x.shape) if learns[0] else None
    return by_x, turned_product(by_out, x.reshape(-1, x.shape[-1])) if any(learns[4:]) else None


def _parts(gradient: Tensor | None, rows: list[int], dtype: torch.dtype) -> Sequence[Tensor | None]:
    """The gradients of parameters that were joined. A lone one is no view, so that autograd may add to it in place."""
    if gradient is None:
        return [None] * len(rows)
    wide = gradient.to(dtype)
    return torch.split(wide, rows) if len(rows) > 1 else [wide]
