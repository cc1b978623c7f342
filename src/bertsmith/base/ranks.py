"""The processes of a run: who we are, and sums over all of us. One process is the ordinary case and costs nothing."""

from __future__ import annotations

import torch
import torch.distributed as dist


def world_size() -> int:
    """How many processes take part; 1 where torch.distributed was not started."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Our number among them, from 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def is_first() -> bool:
    """Whether we are the rank that writes files and speaks."""
    return rank() == 0


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """The element-wise sum of `values` over all ranks, in place; `values` itself where there is one rank."""
    if world_size() > 1:
        dist.all_reduce(values, op=dist.ReduceOp.SUM)
    return values
