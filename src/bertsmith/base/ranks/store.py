"""The store at which the ranks of a run meet, and what they leave there for one another.

here/R      how many processes have come as rank R: one, unless two were given the same number
host/R      on which host rank R is, and what it trains on (`Arrival`); written as it arrives
arrived     how many ranks have
beat/R, verdict     see `watch`
stopped     the exit status of a run that was stopped by a signal, after saving
"""

from __future__ import annotations

import platform
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

from bertsmith.base.errors import BertsmithError, RankLost
from bertsmith.base.ranks.places import Place
from bertsmith.base.ranks.verdict import Verdict

T = TypeVar("T")
VERDICT, STOPPED = "verdict", "stopped"
# A rank that waits for a store that is not there yet looks around so often.
_TRY_SECONDS = 5.0
_POLL_SECONDS = 0.2
_FIX = "set MASTER_PORT to a port that is free on that host, and can be reached from the others"


class RankTaken(BertsmithError):
    """Another process has come as the same rank. all_met: whether all ranks have, which then go on without this one."""

    def __init__(self, place: Place, host: str = "", all_met: bool = False) -> None:
        what = f"another process has come as rank {place.rank} already{f', on {host}' if host else ''}"
        fix = "give each process a number of its own (RANK, SLURM_PROCID), and each run its own MASTER_PORT"
        super().__init__(what, f"{place.address}:{place.port}", fix)
        self.all_met = all_met


def here(rank: int) -> str:
    """The key under which processes that come as a rank are counted."""
    return f"here/{rank}"


def this_host() -> str:
    """The name of this machine, for messages."""
    return platform.node() or "an unnamed host"


def serve(address: str, timeout_seconds: float, run: str) -> tuple[Any, int]:
    """A store that this process holds for ranks that it starts, and its port. run: as of `Place`."""
    server = dist.TCPStore(address, 0, None, True, timedelta(seconds=timeout_seconds), wait_for_workers=False)  # type: ignore[attr-defined]
    return _part(server, run, "0"), server.port


def connect(place: Place, timeout_seconds: float, orphaned: Callable[[], bool]) -> Any:
    """The store, which may not be there yet: hosts of a job start minutes apart. Made here if this rank holds it.

    orphaned: whether what started this rank is gone. Raises RankLost where the store cannot be reached or made.
    """
    end = time.monotonic() + timeout_seconds
    seconds = min(_TRY_SECONDS, timeout_seconds)
    while True:
        try:
            if not place.hosts_store:  # each failed attempt of torch's own would write a C++ stack trace
                socket.create_connection((place.address, place.port), seconds).close()
            store = _opened(place, seconds, place.hosts_store)
            store.set_timeout(timedelta(seconds=timeout_seconds))
            return store
        except (RuntimeError, OSError) as error:
            reason = str(error).splitlines()[0]
            lost = RankLost(f"the ranks could not meet ({reason})", f"{place.address}:{place.port}", _FIX)
            if place.hosts_store:
                _tell_ours(place, reason)
            if place.hosts_store or orphaned() or time.monotonic() > end:
                raise lost from error
            time.sleep(_POLL_SECONDS)


def settled(store: Any, verdict: Verdict, after_seconds: float) -> Verdict | None:
    """Writes a verdict, unless there is one within so many seconds: gives the one that stands, None where the store
    cannot be reached."""
    end = time.monotonic() + after_seconds
    try:
        while time.monotonic() < end:
            if standing := Verdict.read(store.get(VERDICT)):
                return standing
            time.sleep(_POLL_SECONDS)
        return Verdict.read(store.compare_set(VERDICT, "", verdict.text()))
    except RuntimeError:
        return None


def asked(work: Callable[[], T], seconds: float) -> T:
    """What `work` gets from the store; RankLost where it has no answer in time, as of a host that was cut off."""
    answers: queue.SimpleQueue[tuple[list[T], Exception | None]] = queue.SimpleQueue()

    def ask() -> None:
        try:
            answers.put(([work()], None))
        except Exception as error:  # any error: it is raised again by who waits
            answers.put(([], error))

    threading.Thread(target=ask, daemon=True).start()
    try:
        found, error = answers.get(timeout=seconds)
    except queue.Empty:
        raise RankLost(f"the store of the ranks has not answered for {seconds:.0f} s") from None
    if isinstance(error, RuntimeError):
        raise RankLost(f"the connection to the store of the ranks was lost ({str(error).splitlines()[0]})") from error
    if error is not None:
        raise error
    return found[0]


def apart(store: Any, name: str) -> Any:
    """A part of a store, whose keys are in nobody else's way."""
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]


def _opened(place: Place, seconds: float, hold: bool) -> Any:
    server = dist.TCPStore(  # type: ignore[attr-defined]
        place.address, place.port, None, hold, timedelta(seconds=seconds), wait_for_workers=False, multi_tenant=True
    )
    store = _part(server, place.run, place.attempt)
    store.compare_set(VERDICT, "", "")  # there may be one already
    return store


def _tell_ours(place: Place, reason: str) -> None:
    """Where another run's store is at our port, our other ranks wait there: gives them the reason, if that can be.

    Raises RankTaken where it is our own run's."""
    found = Verdict(place.rank, this_host(), f"could not open {place.address}:{place.port}: {reason}", told=True)

    def tell() -> None:
        store = _opened(place, _TRY_SECONDS, hold=False)
        if store.check([here(place.rank)]):
            raise RankTaken(place)
        settled(store, found, 0.0)

    with suppress(RankLost):
        asked(tell, 2 * _TRY_SECONDS)


def _part(server: Any, run: str, attempt: str) -> Any:
    """Apart from torchrun's own keys, from those of another run that came to the same port, and from those of ranks
    that were started before these."""
    return apart(server, f"bertsmith/{run}/{attempt}")
