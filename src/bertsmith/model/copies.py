"""Copies of weights in the dtype of matrix products, and of weights that are multiplied side by side.

A copy is made once and kept until the optimizer changes the weight. Its gradient goes back to the parameters in their
own dtype, so micro-batches are summed in fp32 however many there are. Of weights that are gathered from the shards of
several ranks no copy outlives the product that it is made for: kept, it would undo the sharding, and be stale after the
next gather, which writes to the same tensor and counts as no change of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook
from torch.utils.weak import WeakIdKeyDictionary


class _Copies:
    """The last copy made of each group of parameters, and what it was made from."""

    def __init__(self) -> None:
        self._kept: Any = WeakIdKeyDictionary()
        self._hook: Any = None

    def of(self, parameters: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
        """The parameters joined along their first axis, in `dtype`, without a gradient."""
        # Tensors made in inference mode do not tell that they were written to.
        if any(each.is_inference() for each in parameters) or are_gathered(parameters):
            return _joined(parameters, dtype)
        if (joined := _side_by_side(parameters, dtype)) is not None:
            return joined
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
        if self._hook is None:
            # PyTorch's fused optimizers, and those that write to `.data`, leave the versions of parameters as they
            # were. The hook is called for every optimizer of the process, those made before it too.
            self._hook = register_optimizer_step_post_hook(self._forget_stepped)
        return joined

    def forget(self, changed: Iterable[Tensor]) -> None:
        """Drops the copies of these parameters."""
        ids = {id(each) for each in changed}
        for first in [reference() for reference in self._kept.keyrefs()]:  # a list: other threads may add to it
            kept = self._kept.get(first, None) if first is not None else None
            if kept is not None and not ids.isdisjoint(map(id, (first, *kept[2]))):
                self._kept.pop(first, None)

    def _forget_stepped(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.forget(each for group in optimizer.param_groups for each in group["params"])


def _joined(parameters: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    # A copy that was made in inference mode could never be trained with.
    with torch.inference_mode(False), torch.no_grad():
        rows, first = [len(each) for each in parameters], parameters[0]
        joined = torch.empty(sum(rows), *first.shape[1:], dtype=dtype, device=first.device)
        for part, each in zip(torch.split(joined, rows), parameters, strict=True):
            part.copy_(each)
    return joined


def _side_by_side(parameters: Sequence[Tensor], dtype: torch.dtype) -> Tensor | None:
    """The tensor whose rows parameters are, as `keep_once` leaves them; None where there is none."""
    first, rows = parameters[0], 0
    storage, row_bytes = first.untyped_storage().data_ptr(), first.stride(0) * first.itemsize
    for each in parameters:
        follows = each.data_ptr() == first.data_ptr() + rows * row_bytes and each.is_contiguous()
        if each.dtype != dtype or not follows or each.untyped_storage().data_ptr() != storage:
            return None
        rows += len(each)
    return first.detach().as_strided((rows, *first.shape[1:]), first.stride())


def keep_once(dtype: torch.dtype, *parameters: Tensor) -> None:
    """Makes parameters that are multiplied side by side the rows of one tensor in `dtype`, of which products need no
    copy. For a model that is not trained any more."""
    joined = _joined(parameters, dtype)
    for each, own in zip(parameters, torch.split(joined, [len(each) for each in parameters]), strict=True):
        each.requires_grad_(False)
        each.data = own


_copies = _Copies()
_gathered: Any = WeakIdKeyDictionary()


def keep_no_copies(parameters: Iterable[Tensor]) -> None:
    """From now on these are tensors that gathers fill, as often as they are needed."""
    for each in parameters:
        _gathered[each] = True


def are_gathered(parameters: Sequence[Tensor]) -> bool:
    """Whether any of these was given to `keep_no_copies`."""
    return bool(_gathered) and any(each in _gathered for each in parameters)


def to_save(copy: Tensor, *parameters: Tensor) -> Sequence[Tensor]:
    """What a backward pass is to save, for `plain_copy` to make this copy of again: itself, or where they are gathered
    the parameters, whose memory is given back and filled again until then."""
    return parameters if are_gathered(parameters) else (copy,)


def plain_copy(dtype: torch.dtype, *parameters: Tensor) -> Tensor:
    """The parameters joined along their first axis, in `dtype`; a single one in that dtype is itself. For autograd
    functions, which see to the gradient."""
    is_itself = len(parameters) == 1 and parameters[0].dtype == dtype
    return parameters[0] if is_itself else _copies.of(parameters, dtype)


def compute_copy(dtype: torch.dtype, *parameters: Tensor) -> Tensor:
    """The parameters joined along their first axis, in `dtype`, with gradients that reach them."""
    if torch.compiler.is_compiling() or (len(parameters) == 1 and parameters[0].dtype == dtype):
        return torch.cat([each.to(dtype) for each in parameters]) if len(parameters) > 1 else parameters[0].to(dtype)
    if not torch.is_grad_enabled():
        return _copies.of(parameters, dtype)
    copy: Tensor = _Compute.apply(_copies.of(parameters, dtype), *parameters)  # type: ignore[no-untyped-call]
    return copy


class _Compute(torch.autograd.Function):
    """Stands for the joined copy in the graph; gives each parameter its part of the gradient, in its own dtype."""

    @staticmethod
    def forward(ctx: Any, copy: Tensor, *parameters: Tensor) -> Tensor:
        ctx.rows = [len(each) for each in parameters]
        ctx.dtype = parameters[0].dtype
        return copy.view_as(copy)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *torch.split(gradient.to(ctx.dtype), ctx.rows)
