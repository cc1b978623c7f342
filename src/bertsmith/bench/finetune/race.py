"""All sides of a task in turns, and what they took."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from bertsmith.bench.finetune.side import Side
from bertsmith.bench.process import Child
from bertsmith.bench.turns import a_round, goes_on


@dataclass
class Turns:
    """What the sides of a task took. seconds: of each turn that counts, as many for every side that did not fail.
    failed: why a side has none."""

    seconds: dict[Side, list[float]] = field(default_factory=dict)
    failed: dict[Side, str] = field(default_factory=dict)


def take_turns(sides: Mapping[Side, Child], steps: int, seconds: float) -> Turns:
    """A turn of `steps` of each side to warm up, and then 3 to 9 rounds, as many as `seconds` allow. A side that fails
    in any of them is left out from then on. Raises as `a_round`."""
    found, left = Turns(), dict(sides)

    def fail(side: Side, why: str) -> None:
        found.failed[side] = why
        found.seconds.pop(side, None)

    found.seconds = {side: [] for side in a_round(left, 0, fail, steps=steps)}
    began, rounds = time.monotonic(), 0
    while left and goes_on(rounds, time.monotonic() - began, seconds):
        for side, answer in a_round(left, rounds, fail, steps=steps).items():
            found.seconds[side].append(float(answer["seconds"]))
        rounds += 1
    return found
