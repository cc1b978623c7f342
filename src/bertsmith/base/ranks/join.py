"""Joining the ranks of a run, doing its work on this one, and leaving so that no other rank waits for ever.

A process that takes part ends here: with 0 where the work was done, and where it was stopped by a signal after saving;
with the status of what failed on the rank that failed first.
"""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from bertsmith.base import log, ranks
from bertsmith.base.errors import EXIT_DONE, EXIT_RANK_LOST, BertsmithError
from bertsmith.base.ranks.places import LAUNCHER, Place
from bertsmith.base.ranks.verdict import failed
from bertsmith.base.ranks.watch import PRINT_SECONDS, VERDICT, Watch, named
from bertsmith.base.stopping import StoppedAfterSaving

STOPPED = "stopped"
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
        store = _meet(place, max(joining.timeout_seconds, _JOIN_SECONDS))
        watch = _watched(store, joining)
        _join(store, joining)
        try:
            work()
        except StoppedAfterSaving as stopped:
            store.set(STOPPED, str(stopped.status))
            if not place.rank:
                print(stopped, file=sys.stderr)
        watch.finish()
        dist.destroy_process_group()
    except BaseException as error:
        ranks.leave(_failed(error, joining, watch))
    ranks.leave(EXIT_DONE)


def _meet(place: Place, timeout_seconds: float) -> Any:
    """The store of the ranks, at which all have arrived. Raises BertsmithError that names the missing ones."""
    timeout = timedelta(seconds=timeout_seconds)
    where = f"{place.address}:{place.port}"
    try:
        server = dist.TCPStore(
            place.address, place.port, None, place.hosts_store, timeout, wait_for_workers=False, multi_tenant=True
        )
    except dist.DistNetworkError as error:
        reason = str(error).splitlines()[0]
        fix = "set MASTER_PORT to a port that is free on that host, and can be reached from the others"
        raise BertsmithError(f"the ranks could not meet ({reason})", where, fix) from error
    store = dist.PrefixStore(f"bertsmith/{place.attempt}", server)
    store.compare_set(VERDICT, "", "")  # there may be one already
    store.set(f"beat/{place.rank}", "0")
    store.set(f"host/{place.rank}", platform.node() or "an unnamed host")
    keys = [f"host/{each}" for each in range(place.world_size)]
    try:
        store.wait(keys)
    except dist.DistStoreError as error:
        missing = [str(number) for number, key in enumerate(keys) if not store.check([key])]
        what = f"{len(missing)} of {place.world_size} ranks did not come within {log.duration(timeout_seconds)}"
        raise BertsmithError(f"{what}: {', '.join(missing[:8])}", where, "look at the logs of these ranks") from error
    return store


def _watched(store: Any, joining: Joining) -> Watch:
    place = joining.place
    hosts = [each.decode() for each in store.multi_get([f"host/{each}" for each in range(place.world_size)])]
    parent = os.environ.get(LAUNCHER, "") if os.name == "posix" else ""
    orphaned = (lambda: os.getppid() != int(parent)) if parent else (lambda: False)
    watch = Watch(store, place, hosts, joining.timeout_seconds, ranks.leave, orphaned)
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
        store=dist.PrefixStore("group", store),
        rank=place.rank,
        world_size=place.world_size,
        timeout=timedelta(seconds=max(joining.timeout_seconds, ranks.COLLECTIVE_SECONDS)),
        device_id=device,
    )
    if place.world_size > 1:
        ranks.host_group()


def _failed(error: BaseException, joining: Joining, watch: Watch | None) -> int:
    """Tells the other ranks, and the user where no other rank has done so, why this one leaves; gives its status."""
    place, host = joining.place, platform.node() or "an unnamed host"
    status, text = joining.tell(error)
    if watch is not None and _of_connections(error):
        watch.wait_for_verdict()  # another rank broke the connection: the watch finds which
        status, text = EXIT_RANK_LOST, f"the connection to another rank was lost: {error}"
    mine = failed(place.rank, host, error, status)
    standing = watch.report(mine, _FIRST_SPEAKS_SECONDS if place.rank else 0.0) if watch is not None else None
    if standing is None or standing == mine or standing.what != mine.what:
        end = threading.Timer(PRINT_SECONDS, os._exit, [status])
        end.daemon = True
        end.start()
        print(f"{named(place.rank)}{text}", file=sys.stderr, flush=True)
    if watch is not None:
        watch.outlive()
    return status if standing is None else standing.status


def _of_connections(error: BaseException | None) -> bool:
    """Whether an error, or what it was raised from, is one of the connections between ranks."""
    while error is not None:
        words = str(error).lower()
        if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and "gloo" in words):
            return True
        error = error.__cause__
    return False
