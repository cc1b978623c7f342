"""Rows that are measured one after the other, each in the file as soon as it is made; one that fails ends no other."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import write_json
from bertsmith.base.log import warn
from bertsmith.bench.process import NO_TIME, OutOfTime
from bertsmith.bench.table import Table

_PATIENCE, _LEAST_SECONDS = 2.5, 60.0
"""Times the seconds that a part is expected to take, and the least, after which it is ended: one that hangs leaves time
for the others."""


@dataclass
class Rows:
    """What a check found so far, which the file `to` holds at any time. head: what stands before the rows. machine: it
    grows with what is known of it. expected: what the row of a name is to show, before it is measured. failed: why
    there is no row, by name. call: the number of this call among those that made the file, from 1. tried: what comes
    last, and why: what failed in earlier calls, unless it was for lack of time, tests among it, and rows that were made
    in part. again: whether rows of earlier calls are measured anew."""

    to: Path
    head: dict[str, Any]
    machine: dict[str, str]
    expected: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    made: list[dict[str, Any]] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    call: int = 1
    tried: dict[str, str] = field(default_factory=dict)
    again: bool = False

    def add(self, row: dict[str, Any]) -> None:
        """Keeps a row, whose name is its "case", with the number of its call and what was expected of it, in the place
        of one of an earlier call."""
        case = row["case"]
        self.made = [each for each in self.made if each["case"] != case]
        self.made.append(
            {**row, "call": self.call} | ({"expected": self.expected[case]} if case in self.expected else {})
        )
        self.write()

    def fail(self, name: str, why: str) -> None:
        """Keeps the reason why there is no row of this name, and tells it."""
        warn(f"{name}: {why}")
        self.failed[name] = why
        self.write()

    def write(self) -> None:
        """Puts everything into the file, whole or not at all."""
        every = {name: why for name, why in self.tried.items() if name not in self.names} | self.failed
        failed = [{"case": name, "why": why} for name, why in every.items()]
        write_json(self.to, {**self.head, "machine": self.machine, "rows": self.made, "failed": failed})

    def missing(self, names: Sequence[str]) -> list[str]:
        """Those that were neither made nor failed, or came out wrong or in part in an earlier call; what failed then
        stands last."""
        done = [row for row in self.made if is_right(row) and is_whole(row) and not self.again]
        right = {row["case"] for row in (*done, *(row for row in self.made if row["call"] == self.call))}
        left = [name for name in names if name not in right and name not in self.failed]
        return sorted(left, key=self.tried.__contains__)

    @property
    def names(self) -> set[str]:
        """Of the rows that were made."""
        return {row["case"] for row in self.made}

    def figure(self, name: str, what: str) -> Any:
        """A figure of the row of this name; None where there is none."""
        return next((row.get(what) for row in self.made if row["case"] == name), None)


PASSED = "passed"
"""How tests end."""


def is_right(row: Mapping[str, Any]) -> bool:
    """Whether tests passed, and a kernel was exact; other rows cannot be wrong."""
    return bool(row.get("within", True)) and row.get("ended", PASSED) == PASSED


def is_whole(row: Mapping[str, Any]) -> bool:
    """Whether there was time for all that a row tells."""
    return NO_TIME not in row.get("note", "")


@dataclass(frozen=True)
class Part:
    """Rows that share processes. names: theirs, in order. measure: given the names that are wanted and a deadline of
    time.monotonic(), adds their rows. table: of all rows of the parts that have the same one. seconds: that all of it
    is expected to take on an H100, kernels compiled afresh."""

    names: tuple[str, ...]
    measure: Callable[[Sequence[str], float], None]
    table: Callable[[Sequence[dict[str, Any]]], Table]
    seconds: float


def measure_parts(parts: Sequence[Part], rows: Rows, deadline: float, only: str) -> None:
    """Measures the rows in whose name `only`, a regular expression, is found, in order; those that failed in an earlier
    call come last. Afterwards each of them is made or failed, whatever a part raises; one that is there already is not
    measured again. deadline: of time.monotonic()."""
    for part in in_order(parts, rows):
        names = rows.missing([name for name in part.names if re.search(only, name)])
        why, now = NO_TIME, time.monotonic()
        patience = max(_PATIENCE * part.seconds, _LEAST_SECONDS)
        if names and now < deadline:
            try:
                part.measure(names, min(deadline, now + patience))
                why = "it was passed over"
            except OutOfTime:
                why = NO_TIME
            except BertsmithError as error:
                why = error.what
            except Exception as error:  # our own bugs, too, end one part alone
                why = f"{type(error).__name__}: {error}"
        for name in rows.missing(names):
            rows.fail(name, why)
        taken = time.monotonic() - now
        if names and now < deadline:
            took = {"call": rows.call, "first": names[0], "rows": len(names), "seconds": round(taken, 1)}
            rows.head.setdefault("part_seconds", []).append(took)
        if now + patience < deadline:  # the row that was under way hung, or needs more than its part was given
            late = [name for name in names if rows.failed.get(name) == NO_TIME][:1]
            rows.failed |= dict.fromkeys(late, f"it was ended after {taken:.0f} s")
        rows.write()


def in_order(parts: Sequence[Part], rows: Rows) -> list[Part]:
    """The parts as they are measured: those of which all that is left failed in an earlier call come last."""
    return sorted(parts, key=lambda part: set(rows.missing(part.names)) <= rows.tried.keys())


def calls_of(parts: Sequence[Part], total: float) -> list[list[Part]]:
    """The parts as calls of `total` seconds reach them, by what they are expected to take."""
    calls: list[list[Part]] = [[]]
    for part in parts:
        if calls[-1] and sum(each.seconds for each in calls[-1]) + part.seconds > total:
            calls.append([])
        calls[-1].append(part)
    return calls


def tables(parts: Sequence[Part], rows: Rows) -> list[Table]:
    """Those that have rows, in the order of the parts."""
    found = []
    for table in dict.fromkeys(part.table for part in parts):
        names = {name for part in parts if part.table == table for name in part.names}
        own = [row for row in rows.made if row["case"] in names]
        found += [table(own)] if own else []
    return found
