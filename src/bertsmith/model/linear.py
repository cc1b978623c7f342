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

from bertsmith.model.cpu_products import multiplied, turned_product


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


def joined_linear(x: Tensor, *maps: nn.Linear) -> Tensor:
    """The maps' outputs side by side, in one product: x[..., in] -> [..., out of all]."""
    return product(x, [each.weight for each in maps], [each.bias for each in maps])


def product(x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Tensor:
    """x W + b in the dtype of x, for weights [out, in] and biases [out], each joined along their first axis."""
    if x.device.type != "cpu" or x.dtype == weights[0].dtype or torch.compiler.is_compiling():
        return functional.linear(x, compute_copy(x.dtype, *weights), compute_copy(x.dtype, *biases))
    copies = _copies.of(weights, x.dtype), _copies.of(biases, x.dtype)
    out: Tensor = _HalfProduct.apply(x, *copies, *weights, *biases)  # type: ignore[no-untyped-call]
    return out


class _HalfProduct(torch.autograd.Function):
    """The product in half precision on a CPU."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, bias: Tensor, *parameters: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x, weight)
        ctx.rows = [len(each) for each in parameters[: len(parameters) // 2]]
        ctx.dtype = parameters[0].dtype
        return multiplied(x.reshape(-1, x.shape[-1]), weight.t(), bias).view(*x.shape[:-1], len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor):  # type: ignore[no-untyped-def]
        x, weight = ctx.saved_tensors
        flat, rows = gradient.reshape(-1, gradient.shape[-1]), x.reshape(-1, x.shape[-1])
        by_x = multiplied(flat, weight).view(x.shape) if ctx.needs_input_grad[0] else None
        if not any(ctx.needs_input_grad[3:]):
            return by_x, None, None, *[None] * (2 * len(ctx.rows))
        by_weight = turned_product(flat, rows)
        by_bias = flat.sum(0)
        return by_x, None, None, *_parts(by_weight, ctx.rows, ctx.dtype), *_parts(by_bias, ctx.rows, ctx.dtype)


def _parts(gradient: Tensor, rows: list[int], dtype: torch.dtype) -> Sequence[Tensor]:
    """The gradients of parameters that were joined. A lone one is no view, so that autograd may add to it in place."""
    wide = gradient.to(dtype)
    return torch.split(wide, rows) if len(rows) > 1 else [wide]
