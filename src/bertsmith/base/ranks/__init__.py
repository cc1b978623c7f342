"""The processes of a run: our rank, the world size, and sums over ranks. A single process costs nothing extra."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import as_only_rank
from bertsmith.base.ranks.places import started_together

T = TypeVar("T")
# How long a rank may take to come to what all ranks do together: the first one may check, build or save for minutes,
# alone. That it lives is not judged by this, but by its heartbeats (see `watch`).
COLLECTIVE_SECONDS = 1800.0
_PRINT_SECONDS = 10.0
# How long a rank may work alone, while others wait for it.
_ALONE_DAYS = 365
_alone = False
# The default process group, and the group for messages between hosts that was made beside it.
_host_group: tuple[dist.ProcessGroup, dist.ProcessGroup] | None = None


def world_size() -> int:
    """The number of processes that work together; 1 if torch.distributed was not initialised, and in `each_alone`."""
    return 1 if _alone else processes()


def processes() -> int:
    """As `world_size`, but all of them in `each_alone` too."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process, from 0; 0 in `each_alone`."""
    return 0 if world_size() == 1 else dist.get_rank()


def is_first() -> bool:
    """Whether this is the rank that writes files and logs."""
    return rank() == 0


def sum_over_ranks(values: torch.Tensor) -> torch.Tensor:
    """The element-wise sum of `values` over all ranks, in place; `values` itself if there is one rank."""
    if world_size() > 1:
        dist.all_reduce(values, op=dist.ReduceOp.SUM)
    return values


def host_group() -> dist.ProcessGroup:
    """The group for messages through the hosts' memory, by gloo, apart from the one that sums gradients: neither waits
    for the other, nor for a device. All ranks must make the first call together; there must be several of them."""
    global _host_group
    world = dist.group.WORLD
    assert world is not None
    if _host_group is None or _host_group[0] is not world:
        made = dist.new_group(backend="gloo", timeout=timedelta(seconds=COLLECTIVE_SECONDS))
        _host_group = world, made
    return _host_group[1]


def gathered(value: T) -> list[T]:
    """A value of every rank, in their order, on every rank; [value] if there is one rank. It must be picklable."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value, group=host_group())
    return values


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
    dist.broadcast_object_list(outcome, src=0, group=host_group())
    if outcome[1] is not None:
        raise outcome[1]
    result: T = outcome[0]
    return result


def each_alone(work: Callable[[], T]) -> list[T]:
    """Calls `work` on every rank as if there were no other one; gives the result of every rank, in their order, when
    the last one is done. It must be picklable.

    An error is raised on its own rank at once: under the command line the others then leave as when any rank fails, and
    else they wait, so that whoever started the ranks must end them.
    """
    global _alone
    several = world_size() > 1
    group = dist.new_group(backend="gloo", timeout=timedelta(days=_ALONE_DAYS)) if several else None
    before, _alone = _alone, True
    try:
        with as_only_rank():
            value = work()
    finally:
        _alone = before
    if group is None:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value, group=group)
    dist.destroy_process_group(group)
    return values


def check_joined() -> None:
    """Raises BertsmithError in one of several processes not joined by torch.distributed: each would be the first."""
    together = started_together() if world_size() == 1 else 1
    if together > 1:
        raise BertsmithError(
            f"this is one of {together} processes not joined by torch.distributed: each would write to the same folder",
            "environment: WORLD_SIZE, SLURM_NTASKS, OMPI_COMM_WORLD_SIZE or PMI_SIZE",
            "start one process, or call torch.distributed.init_process_group in each before bertsmith.pretrain",
        )


def leave(status: int, words: str = "", after_seconds: float = 0.0) -> NoReturn:
    """Prints its last words to standard error and ends this process, whatever its threads wait for.

    after_seconds: it stays for so long once they are printed.
    """
    # Whoever reads our output may have stopped reading.
    timer = threading.Timer(after_seconds + _PRINT_SECONDS, os._exit, [status])
    timer.daemon = True
    timer.start()
    with suppress(OSError, ValueError):
        if words:
            print(words, file=sys.stderr, flush=True)
        time.sleep(after_seconds)
        for stream in filter(None, (sys.stdout, sys.stderr)):  # a shell may have closed one
            stream.flush()
    os._exit(status)
