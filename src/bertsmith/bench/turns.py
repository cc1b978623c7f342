"""Sides of a bench in turns, so that what else the machine does disturbs all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.child import Answer
from bertsmith.bench.process import Child, SideFailed, ending

FEWEST_ROUNDS, MOST_ROUNDS = 3, 9


class Side(Protocol):
    """What a process of a bench measures."""

    @property
    def is_ours(self) -> bool: ...


S = TypeVar("S", bound=Side)


@dataclass
class Turns(Generic[S]):
    """What sides took. seconds: of each turn that counts, as many for every side that did not fail. failed: why a side
    has none."""

    seconds: dict[S, list[float]] = field(default_factory=dict)
    failed: dict[S, str] = field(default_factory=dict)


def take_turns(sides: Mapping[S, Child], steps: int, seconds: float) -> Turns[S]:
    """A turn of `steps` of each side to warm up, and then 3 to 9 rounds, as many as `seconds` allow. A side that fails
    in any of them is left out from then on. Raises as `a_round`."""
    found, left = Turns[S](), dict(sides)

    def fail(side: S, why: str) -> None:
        found.failed[side] = why
        found.seconds.pop(side, None)

    found.seconds = {side: [] for side in a_round(left, 0, fail, steps=steps)}
    began, rounds = time.monotonic(), 0
    while left and goes_on(rounds, time.monotonic() - began, seconds):
        for side, answer in a_round(left, rounds, fail, steps=steps).items():
            found.seconds[side].append(float(answer["seconds"]))
        rounds += 1
    return found


def a_round(sides: dict[S, Child], number: int, fail: Callable[[S, str], None], **asked: Any) -> dict[S, Answer]:
    """What each side answers to "turn", beginning with another one in each round. One that fails leaves `sides`, and
    `fail` is given the reason.

    Raises OutOfTime as `Child` does, and BertsmithError where a process of ours ends by itself.
    """
    order = list(sides)
    first = number % max(len(order), 1)
    found = {}
    for side in (*order[first:], *order[:first]):
        try:
            found[side] = sides[side].ask("turn", **asked)
        except BertsmithError as why:  # what ends a peer ends nothing else
            if side.is_ours and not isinstance(why, SideFailed):
                raise
            fail(side, ending(why))
            del sides[side]
    return found


def goes_on(rounds: int, spent: float, seconds: float) -> bool:
    """Whether another round is due: their number is odd in the end, so that there is a median one."""
    return rounds < FEWEST_ROUNDS or rounds % 2 == 0 or (rounds < MOST_ROUNDS and spent < seconds)
