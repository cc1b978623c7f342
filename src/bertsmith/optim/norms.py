"""L2 norms of many tensors, computed on their device without reading them on the host."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor

from bertsmith.optim import fused

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


def in_shards(tensor: object) -> TypeGuard[DTensor]:
    """Whether this is a tensor that is sharded over ranks. The import of their class takes a second, and whatever made
    one has imported it."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def tensor_norms(tensors: Sequence[Tensor]) -> Tensor:
    """The L2 norm of each of n tensors: fp32 [n], on their device. A tensor that is sharded over ranks counts as a
    whole; then all ranks must call this, for the same tensors.

    PyTorch on a CPU sums a whole tensor in a few fp32 lanes: for a word embedding of 30,522 x 768 the norm is 0.1% too
    small. The norm of the norms of rows is right to 1e-7 and takes less time.
    """
    if any(in_shards(each) for each in tensors):
        return _norms_over_ranks(tensors)
    if fused.can_take(tensors):
        return fused.squares(tensors).sqrt().float()
    if tensors[0].device.type == "cpu":
        return torch.stack([torch.linalg.vector_norm(torch.linalg.vector_norm(each, dim=-1)) for each in tensors])
    return torch.stack(torch._foreach_norm(list(tensors)))


def local_part(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor, sharing its memory; the tensor itself where that is not sharded."""
    return tensor.to_local() if in_shards(tensor) else tensor


def _norms_over_ranks(tensors: Sequence[Tensor]) -> Tensor:
    """`tensor_norms` where some tensors are sharded."""
    local = [local_part(each) for each in tensors]
    there = [number for number, each in enumerate(local) if each.numel()]
    norms = [each.new_zeros(()) for each in local]
    if there:
        for number, norm in zip(there, tensor_norms([local[number] for number in there]).unbind(), strict=True):
            norms[number] = norm
    return whole_norms(tensors, torch.stack(norms).double().square()).to(norms[0].dtype)


def whole_norms(tensors: Sequence[Tensor], squares: Tensor) -> Tensor:
    """Norms of n whole tensors: float64[..., n]. squares: float64[..., n], of the norms of what this rank holds.

    Those of sharded tensors are summed over ranks, in float64, in which no square of an fp32 number overflows, and
    whose rounding fp32 does not see.
    """
    sharded = {number: each for number, each in enumerate(tensors) if in_shards(each)}
    if sharded:
        (group,) = {each.device_mesh.get_group() for each in sharded.values()}
        parts = list(squares.unbind(-1))
        summed = torch.stack([parts[number] for number in sharded], -1)
        dist.all_reduce(summed, group=group)
        for number, part in zip(sharded, summed.unbind(-1), strict=True):
            parts[number] = part
        squares = torch.stack(parts, -1)
    return squares.sqrt()


def global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The L2 norm of n tensors as one vector: a scalar on their device."""
    norm: Tensor = torch.linalg.vector_norm(tensor_norms(tensors))
    return norm
