"""How the ranks of a run wait for each other, and whether they fit together."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bertsmith.base.errors import BertsmithError, RankLost
from bertsmith.base.log import duration, first_of
from bertsmith.base.ranks.places import Place
from bertsmith.base.ranks.store import VERDICT, RankTaken, asked, here
from bertsmith.base.ranks.together import named
from bertsmith.base.ranks.verdict import Verdict

_POLL_SECONDS = 0.5


@dataclass(frozen=True)
class Arrival:
    """What a rank says as it arrives. device: "cpu" or "cuda"; gpu: by which the GPU differs from all others."""

    host: str
    device: str
    gpu: str = ""


@dataclass(frozen=True)
class Patience:
    """join_seconds: for how long ranks wait for each other; answer_seconds: for an answer of the store; orphaned:
    whether what started this rank is gone."""

    join_seconds: float
    answer_seconds: float
    orphaned: Callable[[], bool]


class AllLeave(Exception):
    """Another rank's verdict came before all ranks did. hosts: by rank, "" for one that has not arrived."""

    def __init__(self, verdict: Verdict, hosts: Sequence[str]) -> None:
        super().__init__(verdict.line())
        self.verdict, self.hosts = verdict, hosts


def meet(store: Any, place: Place, mine: Arrival, patience: Patience) -> list[str]:
    """The host of each rank, once all have come to the store.

    Raises BertsmithError where they do not fit together, RankTaken where another process has our number, RankLost for
    ranks that do not come in time, a store that does not answer, and a launcher that is gone, AllLeave for a verdict.
    """
    keys = [f"host/{each}" for each in range(place.world_size)]
    end = time.monotonic() + patience.join_seconds

    def arrive() -> bool:
        if store.add(here(place.rank), 1) > 1:
            return False
        store.set(f"beat/{place.rank}", "0")
        store.set(keys[place.rank], json.dumps(asdict(mine)))
        store.add("arrived", 1)
        return True

    def look() -> tuple[Verdict | None, bool]:
        verdict, count = store.multi_get([VERDICT, "arrived"])
        return Verdict.read(verdict), int(count) >= place.world_size

    def known() -> list[Arrival | None]:
        there = [True] * len(keys) if store.check(keys) else [store.check([key]) for key in keys]
        found = iter(store.multi_get([key for key, is_there in zip(keys, there, strict=True) if is_there]))
        return [Arrival(**json.loads(next(found))) if is_there else None for is_there in there]

    only = asked(arrive, patience.answer_seconds)
    while True:
        verdict, complete = asked(look, patience.answer_seconds)
        late = time.monotonic() > end
        if verdict is not None or complete or late or not only:
            arrivals = asked(known, patience.answer_seconds)
            if verdict is not None:
                raise AllLeave(verdict, [each.host if each else "" for each in arrivals])
            if not only:
                twin = arrivals[place.rank]
                raise RankTaken(place, twin.host if twin else "", complete)
            if complete:
                break
            raise _not_there([rank for rank, each in enumerate(arrivals) if each is None], place, patience)
        if patience.orphaned():
            raise RankLost("the process that started the ranks is gone")
        time.sleep(_POLL_SECONDS)
    found = [each for each in arrivals if each is not None]
    check_alike(found)
    return [each.host for each in found]


def check_alike(arrivals: Sequence[Arrival]) -> None:
    """Raises BertsmithError where some ranks train on a GPU and some on a CPU, and where two have the same GPU."""
    first = arrivals[0]
    others = [rank for rank, each in enumerate(arrivals) if each.device != first.device]
    if others:
        hosts = ", ".join(dict.fromkeys(arrivals[rank].host for rank in others))
        what = f"{named(others)} would train on {arrivals[others[0]].device}, and rank 0 on {first.device}"
        fix = "see whether PyTorch finds the GPUs of every host; or name the device: --device cuda, or --device cpu"
        raise BertsmithError(what, f"{hosts}; rank 0 is on {first.host}", fix)
    for gpu, count in Counter(each.gpu for each in arrivals if each.gpu).items():
        if count > 1:
            same = [rank for rank, each in enumerate(arrivals) if each.gpu == gpu]
            fix = "start one process for each GPU; one that was started by hand needs LOCAL_RANK to choose its own"
            raise BertsmithError(f"{named(same)} have the same GPU", arrivals[same[0]].host, fix)


def _not_there(missing: Sequence[int], place: Place, patience: Patience) -> RankLost:
    what = f"{len(missing)} of {place.world_size} ranks did not come within {duration(patience.join_seconds)}"
    fix = "look at the logs of these ranks; all have to name the same --out"
    return RankLost(f"{what}: {first_of(map(str, missing))}", f"{place.address}:{place.port}", fix)
