"""Joining the ranks of a run, doing its work on this one, and leaving so that no other rank waits for ever.

A process that takes part ends here: with 0 where the work was done, and where it was stopped by a signal after saving;
with the status of what failed on the rank that failed first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from bertsmith.base import log, ranks
from bertsmith.base.errors import EXIT_DONE, EXIT_RANK_LOST, RankLost
from bertsmith.base.log import warn
from bertsmith.base.ranks.gpus import identity, own_gpu
from bertsmith.base.ranks.meeting import AllLeave, Arrival, Patience, meet
from bertsmith.base.ranks.places import LAUNCHER, Place
from bertsmith.base.ranks.store import STOPPED, RankTaken, apart, asked, connect, settled, this_host
from bertsmith.base.ranks.verdict import Verdict, failed, speaks
from bertsmith.base.ranks.watch import Watch, opening
from bertsmith.base.stopping import StoppedAfterSaving, stop_requested

# Hosts of a job may start minutes apart, while images are copied to them.
_JOIN_SECONDS = 900.0
# An error that all ranks have found is printed by the first one, where that is no more than so much later.
_FIRST_SPEAKS_SECONDS = 5.0

# Of the errors of gloo, NCCL and the store, in lower case.
_CONNECTION_WORDS = (
    "connection closed",
    "connection reset",
    "connection refused",
    "connection timed out",
    "connection was lost",
    "broken pipe",
    "timed out waiting",
    "timeout caused pair closure",
    "socket timeout",
    "no route to host",
    "network is unreachable",
    "failed to recv",
    "remote process exited",
    "ncclremoteerror",
    "nccl communicator was aborted",
)

Telling = Callable[[BaseException], tuple[int, str]]


@dataclass(frozen=True)
class Joining:
    """How a rank takes part. device: as the user has set it. timeout_seconds: after which a silent rank is taken for
    lost. tell: the exit status and the message of an error."""

    place: Place
    device: str
    timeout_seconds: float
    tell: Telling


def take_part(joining: Joining, work: Callable[[], None]) -> NoReturn:
    """Joins the ranks, does the work, and ends the process."""
    place = joining.place
    if place.rank:
        log.only_warnings(opening(place.rank))
    store, watch = None, None
    try:
        patience = Patience(max(joining.timeout_seconds, _JOIN_SECONDS), joining.timeout_seconds, _orphaned)
        store = connect(place, patience.join_seconds, _orphaned)
        gpu = own_gpu(joining.device, place.local_rank)
        hosts = meet(store, place, Arrival(this_host(), gpu.type if gpu else "cpu", identity(gpu)), patience)
        watch = Watch(store, place, hosts, joining.timeout_seconds, ranks.leave, _orphaned)
        watch.start()
        _join(store, joining, gpu)
        try:
            work()
        except StoppedAfterSaving as stopped:
            store.set(STOPPED, str(stopped.status))
            with suppress(OSError):  # whoever reads our output may have gone
                if not place.rank:
                    print(stopped, file=sys.stderr)
        watch.finish()
    except AllLeave as news:
        spoken = speaks(place.rank, news.hosts, news.verdict)
        words = f"{opening(place.rank)}{news.verdict.line()}" if spoken else ""
        ranks.leave(news.verdict.status, words, _outlive(place))
    except BaseException as error:
        if isinstance(error, RankTaken) and error.all_met:
            store = None  # no verdict for those that train
        _fail(error, joining, store, watch)
    ranks.leave(EXIT_DONE)


def _orphaned() -> bool:
    """Whether our launcher is gone."""
    parent = os.environ.get(LAUNCHER, "") if os.name == "posix" else ""
    return bool(parent) and os.getppid() != int(parent)


def _join(store: Any, joining: Joining, gpu: torch.device | None) -> None:
    """Makes this process one of the group of torch.distributed."""
    place = joining.place
    os.environ.update(place.variables())
    if gpu is not None:
        torch.cuda.set_device(gpu)
    several_hosts = place.world_size > place.local_world_size
    if not place.rank and several_hosts and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        warn("torchrun may start ranks again beside what those before them left; use --max-restarts 0, and a loop")
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if gpu else "gloo",
        store=apart(store, "group"),
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=max(joining.timeout_seconds, ranks.COLLECTIVE_SECONDS)),
        device_id=gpu,
    )
    if place.world_size > 1:
        ranks.host_group()


def _fail(error: BaseException, joining: Joining, store: Any, watch: Watch | None) -> NoReturn:
    """Leaves for an error: tells the other ranks, and the user where no other rank has reported the same."""
    place = joining.place
    status, text = joining.tell(error)
    patience = _FIRST_SPEAKS_SECONDS if place.rank else 0.0
    if of_connections(error):
        if stop_requested():  # torchrun stops the ranks that are left, and soon kills them
            status, text = EXIT_RANK_LOST, f"the run was not saved: the connection to another rank was lost ({error})"
            patience = _FIRST_SPEAKS_SECONDS
        elif watch is not None:
            watch.wait_for_verdict()  # another rank broke the connection: the watch finds which, and leaves
    mine = failed(place.rank, this_host(), error, status)
    words = f"{opening(place.rank)}{text}"
    standing: Verdict | None = mine
    if watch is not None:
        standing = watch.report(mine, words, patience)
    elif store is not None:
        with suppress(RankLost):
            standing = asked(lambda: settled(store, mine, patience), patience + _FIRST_SPEAKS_SECONDS)
    standing = standing or mine
    said_already = standing != mine and standing.what == mine.what
    ranks.leave(standing.status, "" if said_already else words, watch.outlive_seconds if watch else _outlive(place))


def _outlive(place: Place) -> float:
    """For how long a rank that holds the store keeps it for the others to read, before there is a watch."""
    return _FIRST_SPEAKS_SECONDS if place.hosts_store else 0.0


def of_connections(error: BaseException | None) -> bool:
    """Whether an error, or what it was raised from, is one of the connections between ranks, by its wording: errors of
    collectives that were called wrongly are of the same classes."""
    while error is not None:
        words = str(error).lower()
        if isinstance(error, dist.DistNetworkError):
            return True
        if isinstance(error, RuntimeError) and any(each in words for each in _CONNECTION_WORDS):
            return True
        error = error.__cause__
    return False
