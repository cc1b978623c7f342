"""Two sides of a step bench against each other: each in its own process, in turns, so that noise hits both alike."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.process import Child, OutOfTime, ending, environment_of
from bertsmith.bench.step.side import OURS, StepSide
from bertsmith.bench.turns import goes_on


def start_side(side: StepSide, sets: Mapping[str, Path], folder: Path, deadline: float) -> Child:
    """Starts a side, which is ready later. sets: files of batches by name. folder: a new one. deadline: of
    time.monotonic()."""
    spec = {"side": asdict(side), "sets": sets}
    return Child("bertsmith.bench.step.worker", spec, folder, environment_of(side.side == OURS), deadline)


@dataclass(frozen=True)
class Race:
    """Seconds of each turn, ours and the peer's in pairs. peer: empty without one, or if it failed, and then `failed`
    says why."""

    ours: tuple[float, ...]
    peer: tuple[float, ...] = ()
    failed: str = ""

    @property
    def median_round(self) -> int:
        """The round whose ratio (without a peer: whose time) is the median of all; their number is odd."""
        keys = [p / o for o, p in zip(self.ours, self.peer, strict=True)] if self.peer else list(self.ours)
        return sorted(range(len(keys)), key=keys.__getitem__)[len(keys) // 2]


def race(ours: Child, peer: Child | None, name: str, passes: int, seconds: float) -> Race:
    """A turn of each side to warm up, and then 3 to 9 rounds, as many as `seconds` allow, in which both sides step over
    the batches of set `name` `passes` times; who begins changes from round to round. A peer that fails in any of them
    leaves ours to be raced alone. Raises as `Child.ask` does where ours fails."""
    sides = [ours, *([peer] if peer else [])]
    found: dict[Child, list[float]] = {side: [] for side in sides}

    def turn(side: Child) -> float:
        return float(side.ask("turn", name=name, passes=passes)["seconds"])

    try:
        for side in sides:
            turn(side)
        began = time.monotonic()
        while goes_on(len(found[ours]), time.monotonic() - began, seconds):
            for side in sides[:: -1 if len(found[ours]) % 2 else 1]:
                found[side].append(turn(side))
    except (BertsmithError, OutOfTime) as why:  # what ends a peer ends nothing else
        if side is ours:
            raise
        return Race(race(ours, None, name, passes, seconds).ours, failed=ending(why))
    return Race(tuple(found[ours]), tuple(found[peer]) if peer else ())
