"""Joining the ranks of a run, doing its work on this one, and leaving so that no other rank waits for ever.

A process that takes part ends here: with 0 where the work was done, and where it was stopped by a signal after saving;
with the status of what failed on the rank that failed first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from bertsmith.base import log, ranks
from bertsmith.base.errors import EXIT_DONE, EXIT_RANK_LOST, BertsmithError
from bertsmith.base.ranks.places import LAUNCHER, Place
from bertsmith.base.ranks.store import STOPPED, apart, meet, this_host
from bertsmith.base.ranks.verdict import failed
from bertsmith.base.ranks.watch import Watch, named
from bertsmith.base.stopping import StoppedAfterSaving

# Hosts of a job may start minutes apart, while images are copied to them.
_JOIN_SECONDS = 900.0
# An error that all ranks have found is printed by the first one, where that is no more than so much later.
_FIRST_SPEAKS_SECONDS = 5.0

Telling = Callable[[BaseException], tuple[int, str]]


@dataclass(frozen=True)
class Joining:
    """How a rank takes part. cuda: whether tensors of a GPU are summed. timeout_seconds: after which a silent rank is
    taken for lost. tell: the exit status and the message of an error."""

    place: Place
    cuda: bool
    timeout_seconds: float
    tell: Telling


def take_part(joining: Joining, work: Callable[[], None]) -> NoReturn:
    """Joins the ranks, does the work, and ends the process."""
    place = joining.place
    if place.rank:
        log.only_warnings(named(place.rank))
    watch: Watch | None = None
    try:
        store, hosts = meet(place, max(joining.timeout_seconds, _JOIN_SECONDS))
        watch = _watched(store, hosts, joining)
        _join(store, joining)
        try:
            work()
        except StoppedAfterSaving as stopped:
            store.set(STOPPED, str(stopped.status))
            if not place.rank:
                print(stopped, file=sys.stderr)
        watch.finish()
    except BaseException as error:
        _fail(error, joining, watch)
    ranks.leave(EXIT_DONE)


def _watched(store: Any, hosts: list[str], joining: Joining) -> Watch:
    parent = os.environ.get(LAUNCHER, "") if os.name == "posix" else ""
    orphaned = (lambda: os.getppid() != int(parent)) if parent else (lambda: False)
    watch = Watch(store, joining.place, hosts, joining.timeout_seconds, ranks.leave, orphaned)
    watch.start()
    return watch


def _join(store: Any, joining: Joining) -> None:
    """Makes this process one of the group of torch.distributed."""
    place = joining.place
    os.environ.update(place.variables())
    device = None
    if joining.cuda:
        found = torch.cuda.device_count()
        # A scheduler that binds tasks to GPUs shows each task its own alone.
        device = torch.device("cuda", place.local_rank if found > 1 else 0)
        if place.local_rank >= found > 1:
            what = f"this is process {place.local_rank + 1} of its host, which has {found} GPUs"
            raise BertsmithError(what, "CUDA", "start one process for each GPU")
        torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device else "gloo",
        store=apart(store, "group"),
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=max(joining.timeout_seconds, ranks.COLLECTIVE_SECONDS)),
        device_id=device,
    )
    if place.world_size > 1:
        ranks.host_group()


def _fail(error: BaseException, joining: Joining, watch: Watch | None) -> NoReturn:
    """Leaves for an error: tells the other ranks, and the user where no other rank has said the same."""
    place = joining.place
    status, text = joining.tell(error)
    if watch is None:
        ranks.leave(status, f"{named(place.rank)}{text}")
    if _of_connections(error):
        watch.wait_for_verdict()  # another rank broke the connection: the watch finds which, and leaves
        status, text = EXIT_RANK_LOST, f"the connection to another rank was lost: {error}"
    mine = failed(place.rank, this_host(), error, status)
    words = f"{named(place.rank)}{text}"
    standing = watch.report(mine, words, _FIRST_SPEAKS_SECONDS if place.rank else 0.0) or mine
    said_already = standing != mine and standing.what == mine.what
    ranks.leave(standing.status, "" if said_already else words, watch.outlive_seconds)


def _of_connections(error: BaseException | None) -> bool:
    """Whether an error, or what it was raised from, is one of the connections between ranks."""
    while error is not None:
        words = str(error).lower()
        if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in words):
            return True
        error = error.__cause__
    return False
