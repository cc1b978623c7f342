"""The processes of a run: our rank, the world size, and sums over ranks. A single process costs nothing extra."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from bertsmith.base.errors import BertsmithError

T = TypeVar("T")


def world_size() -> int:
    """The number of processes; 1 if torch.distributed was not initialised."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def is_first() -> bool:
    """Whether this is the rank that writes files and logs."""
    return rank() == 0


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """The element-wise sum of `values` over all ranks, in place; `values` itself if there is one rank."""
    if world_size() > 1:
        dist.all_reduce(values, op=dist.ReduceOp.SUM)
    return values


def any_over_ranks(flags: Sequence[bool], device: torch.device) -> list[bool]:
    """Whether each flag is set on any rank; `flags` themselves if there is one rank. Waits for the device."""
    if world_size() == 1:
        return list(flags)
    return [count > 0 for count in sum_over_ranks(torch.tensor(flags, dtype=torch.float32, device=device)).tolist()]


def by_first(work: Callable[[], T]) -> T:
    """Calls `work` on the first rank, and returns its result, or raises its error, on every rank."""
    if world_size() == 1:
        return work()
    outcome: list[Any] = [None, None]
    if is_first():
        try:
            outcome[0] = work()
        except Exception as error:  # any error: the other ranks would wait for ever
            outcome[1] = error
    dist.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    result: T = outcome[0]
    return result


def gathered(value: T) -> list[T]:
    """A value of every rank, on every rank, in the order of the ranks."""
    if world_size() == 1:
        return [value]
    found: list[Any] = [None] * world_size()
    dist.all_gather_object(found, value)
    return found


def check_joined() -> None:
    """Raises BertsmithError in one of several processes not joined by torch.distributed: each would be the first."""
    started = os.environ.get("WORLD_SIZE", "")
    if started.isdigit() and int(started) > 1 and world_size() == 1:
        raise BertsmithError(
            f"this is one of {started} processes not joined by torch.distributed: each would write to the same folder",
            "environment variable WORLD_SIZE",
            "start one process, or call torch.distributed.init_process_group in each before bertsmith.pretrain",
        )
