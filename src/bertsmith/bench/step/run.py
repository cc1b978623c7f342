"""Runs the plan of a step bench: matches, where the time goes, the ladder; as far as the time goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

from bertsmith.base.log import say
from bertsmith.bench.step.flop import flop_of_step
from bertsmith.bench.step.instances import write_batches
from bertsmith.bench.step.plan import Match, Plan, Rung
from bertsmith.bench.step.race import OutOfTime, Race, SideFailed, SideProcess, race
from bertsmith.bench.step.results import Result, Work
from bertsmith.bench.step.side import StepSide
from bertsmith.model.config import BertConfig

LADDER, TIME = "ladder:", "time:"
"""What the names of these cases begin with."""


@dataclass
class StepRun:
    """deadline: of time.monotonic(). only: cases whose name holds this. What is found: results of matches and of the
    ladder's rungs, profiles by set, the best FLOP/s of a matrix product by precision, what the sides ran on, and the
    cases that were left out, with the reason."""

    plan: Plan
    folder: Path
    deadline: float
    only: str = ""
    results: list[Result] = field(default_factory=list)
    rungs: list[Result] = field(default_factory=list)
    profiles: dict[str, dict[str, Any]] = field(default_factory=dict)
    peaks: dict[str, float] = field(default_factory=dict)
    ran_on: dict[str, Any] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    _files: dict[str, Path] = field(default_factory=dict)
    _sides: int = 0

    def all(self) -> None:
        """Runs everything that `only` lets through and that there is time for."""
        for _, group in groupby(self.plan.matches, key=lambda match: match.ours):
            self._meet([(match, self._wanted(match.sets, match.case)) for match in group])
        self._look_into(self._wanted(self.plan.matches[0].sets, lambda name: f"{TIME} {name}"))
        for rung in self.plan.ladder:
            if self.only in f"{LADDER} {rung.what}":
                self._climb(rung)

    def _wanted(self, names: Sequence[str], case: Callable[[str], str]) -> list[str]:
        return [name for name in names if self.only in case(name)]

    def _meet(self, matches: Sequence[tuple[Match, Sequence[str]]]) -> None:
        """Matches of one side of ours, whose process stays for all of them."""
        cases = [(match, name) for match, names in matches for name in names]
        if not cases:
            return
        with self._in_time([match.case(name) for match, name in cases]) as done, ExitStack() as ours_alive:
            ours: SideProcess | None = None
            for match, names in matches:
                if not names:
                    continue
                with ExitStack() as peer_alive:
                    peer = None
                    if match.peer:
                        peer = peer_alive.enter_context(self._side(match.peer, names))
                    if ours is None:
                        sets = list(dict.fromkeys(name for _, name in cases))
                        ours = ours_alive.enter_context(self._side(match.ours, sets))
                        self.ran_on |= ours.ready()
                        self._measure_peak(ours, sets[0])
                    for name in names:
                        self.results.append(self._race(match, ours, peer, name))
                        done(match.case(name))
            if ours is not None:
                self._measure_peak(ours, cases[-1][1])

    def _race(self, match: Match, ours: SideProcess, peer: SideProcess | None, name: str) -> Result:
        say(f"measuring {match.case(name)}")
        failed = ""
        if peer is not None:
            try:
                peer.ready()
            except SideFailed as why:
                peer, failed = None, str(why)
        found = race(ours, peer, name, self.plan.passes, self.plan.seconds)
        found = replace(found, failed=failed or found.failed)
        return self._result(match.case(name), match.ours, name, found, [ours, *([peer] if found.peer and peer else [])])

    def _result(self, case: str, ours: StepSide, name: str, found: Race, sides: Sequence[SideProcess]) -> Result:
        """sides: whose memory is asked for, ours first."""
        memory = tuple(int(side.ask("memory")["bytes"]) for side in sides)
        return Result(case, ours.precision, self._work(ours, name), found, memory)

    def _look_into(self, names: Sequence[str]) -> None:
        """Where the time of the profiled side goes, over these sets."""
        if not names:
            return
        with self._in_time([f"{TIME} {name}" for name in names]) as done, self._side(self.plan.profiled, names) as side:
            side.ready()
            for name in names:
                say(f"looking into {name}")
                self.profiles[name] = side.ask("profile", name=name)
                done(f"{TIME} {name}")

    def _climb(self, rung: Rung) -> None:
        case = f"{LADDER} {rung.what}"
        with self._in_time([case]) as done, self._side(rung.side, [rung.set]) as side:
            say(f"measuring {case}")
            self.ran_on |= side.ready()
            self._measure_peak(side, rung.set)
            found = race(side, None, rung.set, self.plan.passes, self.plan.seconds / 2)
            self.rungs.append(self._result(case, rung.side, rung.set, found, [side]))
            done(case)

    @contextmanager
    def _in_time(self, cases: Sequence[str]) -> Iterator[Callable[[str], None]]:
        """Notes the cases that were not done when the time was over, or that our side could not do."""
        left = dict.fromkeys(cases)
        try:
            yield lambda case: left.pop(case)
        except OutOfTime:
            self.left_out += [f"{case}: no time was left" for case in left]
        except SideFailed as why:
            self.left_out += [f"{case}: {why}" for case in left]

    def _side(self, side: StepSide, names: Sequence[str]) -> SideProcess:
        """Starts a side; it is ready later."""
        self._sides += 1
        sets = {name: self._file(name) for name in names}
        return SideProcess(side, sets, self.folder / f"side-{self._sides}", self.deadline)

    def _file(self, name: str) -> Path:
        if name not in self._files:
            self._files[name] = self.folder / f"set-{len(self._files)}.npz"
            write_batches(self._files[name], self.plan.sets[name])
        return self._files[name]

    def _work(self, side: StepSide, name: str) -> Work:
        """Of a turn."""
        batches, config = self.plan.sets[name], BertConfig(**side.model)
        return Work(
            self.plan.passes * sum(batch.layout.tokens for batch in batches),
            self.plan.passes * sum(batch.layout.sequences for batch in batches),
            self.plan.passes * sum(flop_of_step(config, batch) for batch in batches),
        )

    def _measure_peak(self, process: SideProcess, name: str) -> None:
        """Keeps the best matrix product that a process has reached in its precision."""
        found = float(process.ask("rate", name=name)["flops"])
        precision = process.side.precision
        self.peaks[precision] = max(found, self.peaks.get(precision, 0.0))
