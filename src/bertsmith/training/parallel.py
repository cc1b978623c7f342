"""Tensors that one rank holds a part of: FSDP2 shards parameters along their first axis, as DTensors."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded over ranks; then all ranks must call it, in the same order."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def fill_from_whole(target: Tensor, values: Tensor) -> None:
    """Copies the whole values, which every rank holds, into a tensor that may be sharded over ranks."""
    if isinstance(target, DTensor):
        values = values.to(target.device)
        values = distribute_tensor(values, target.device_mesh, target.placements, src_data_rank=None)
    target.copy_(values)
