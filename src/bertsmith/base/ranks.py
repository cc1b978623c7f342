"""The processes of a run: who we are, and sums over all of us. One process is the ordinary case and costs nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from bertsmith.base.errors import BertsmithError

T = TypeVar("T")


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


def any_over_ranks(flags: Sequence[bool], device: torch.device) -> list[bool]:
    """Whether each flag is set on some rank; `flags` themselves where there is one rank. Reads from the device."""
    if world_size() == 1:
        return list(flags)
    return [count > 0 for count in sum_over_ranks(torch.tensor(flags, dtype=torch.float32, device=device)).tolist()]


def by_first(work: Callable[[], T]) -> T:
    """Does `work` on the first rank, and gives what came of it, or raises what it raised there, on every rank."""
    if world_size() == 1:
        return work()
    outcome: list[Any] = [None, None]
    if is_first():
        try:
            outcome[0] = work()
        except Exception as error:  # any: the other ranks would wait for ever
            outcome[1] = error
    dist.broadcast_object_list(outcome, src=0)
    if outcome[1] is not None:
        raise outcome[1]
    result: T = outcome[0]
    return result


def check_joined() -> None:
    """Raises BertsmithError in one of several processes that know nothing of each other: each would be the first."""
    started = os.environ.get("WORLD_SIZE", "")
    if started.isdigit() and int(started) > 1 and world_size() == 1:
        raise BertsmithError(
            f"this is one of {started} processes, and they are not joined: each would write the same folder",
            "environment variable WORLD_SIZE",
            "start one process, or call torch.distributed.init_process_group in each before bertsmith.pretrain",
        )
