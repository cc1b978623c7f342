"""The store at which the ranks of a run meet, and what they leave there for one another.

host/R      on which host rank R is; written as it arrives
beat/R, verdict     see `watch`
stopped     the exit status of a run that was stopped by a signal, after saving
"""

from __future__ import annotations

import platform
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import duration
from bertsmith.base.ranks.places import Place

VERDICT, STOPPED = "verdict", "stopped"


def this_host() -> str:
    """The name of this machine, for messages."""
    return platform.node() or "an unnamed host"


def serve(address: str, timeout_seconds: float) -> tuple[Any, int]:
    """A store that this process holds for ranks that it starts, and its port."""
    server = dist.TCPStore(address, 0, None, True, timedelta(seconds=timeout_seconds), wait_for_workers=False)  # type: ignore[attr-defined]
    return _part(server, "0"), server.port


def meet(place: Place, timeout_seconds: float) -> tuple[Any, list[str]]:
    """The store, once all ranks have come to it, and the host of each.

    Raises BertsmithError where it cannot be reached, and one that names the ranks that did not come in time.
    """
    timeout, where = timedelta(seconds=timeout_seconds), f"{place.address}:{place.port}"
    try:
        server = dist.TCPStore(  # type: ignore[attr-defined]
            place.address, place.port, None, place.hosts_store, timeout, wait_for_workers=False, multi_tenant=True
        )
    except dist.DistNetworkError as error:
        reason = str(error).splitlines()[0]
        fix = "set MASTER_PORT to a port that is free on that host, and can be reached from the others"
        raise BertsmithError(f"the ranks could not meet ({reason})", where, fix) from error
    store = _part(server, place.attempt)
    store.compare_set(VERDICT, "", "")  # there may be one already
    store.set(f"beat/{place.rank}", "0")
    store.set(f"host/{place.rank}", this_host())
    keys = [f"host/{each}" for each in range(place.world_size)]
    try:
        store.wait(keys)
    except dist.DistStoreError as error:
        missing = [str(number) for number, key in enumerate(keys) if not store.check([key])]
        what = f"{len(missing)} of {place.world_size} ranks did not come within {duration(timeout_seconds)}"
        raise BertsmithError(f"{what}: {', '.join(missing[:8])}", where, "look at the logs of these ranks") from error
    return store, [each.decode() for each in store.multi_get(keys)]


def apart(store: Any, name: str) -> Any:
    """A part of a store, whose keys are in nobody else's way."""
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]


def _part(server: Any, attempt: str) -> Any:
    """Apart from torchrun's own keys, and from those of ranks that it started before these."""
    return apart(server, f"bertsmith/{attempt}")
