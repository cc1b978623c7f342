"""All sides of a task in turns, so that what else the machine does disturbs them alike."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.finetune.side import OURS, Side
from bertsmith.bench.process import Child, SideFailed, ending
from bertsmith.bench.step.race import goes_on


@dataclass
class Turns:
    """What the sides of a task took. seconds: of each turn that counts, as many for every side that did not fail.
    failed: why a side has none."""

    seconds: dict[Side, list[float]] = field(default_factory=dict)
    failed: dict[Side, str] = field(default_factory=dict)


def take_turns(sides: Mapping[Side, Child], steps: int, seconds: float) -> Turns:
    """A turn of `steps` of each side to warm up, and then 3 to 9 rounds, as many as `seconds` allow, each beginning
    with another side. A side that fails in any of them is left out from then on.

    Raises OutOfTime as `Child` does, and BertsmithError where a process of ours ends by itself.
    """
    found = Turns()
    for side, child in sides.items():
        if _turn(side, child, steps, found) is not None:
            found.seconds[side] = []
    began, rounds = time.monotonic(), 0
    while found.seconds and goes_on(rounds, time.monotonic() - began, seconds):
        order = list(found.seconds)
        first = rounds % len(order)
        for side in (*order[first:], *order[:first]):
            spent = _turn(side, sides[side], steps, found)
            if spent is None:
                del found.seconds[side]
            else:
                found.seconds[side].append(spent)
        rounds += 1
    return found


def _turn(side: Side, child: Child, steps: int, found: Turns) -> float | None:
    """The seconds of a turn; None where the side failed, which is noted. What ends a peer ends nothing else."""
    try:
        return float(child.ask("turn", steps=steps)["seconds"])
    except BertsmithError as why:
        if side.side == OURS and not isinstance(why, SideFailed):
            raise
        found.failed[side] = ending(why)
    return None
