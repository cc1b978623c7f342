"""Runs the plan of a step bench: matches, where the time goes, the ladder; as far as time allows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say
from bertsmith.bench.process import NO_TIME, Child, OutOfTime, SideFailed, ending
from bertsmith.bench.step.instances import write_batches
from bertsmith.bench.step.plan import Match, Plan, Rung
from bertsmith.bench.step.race import Race, race, start_side
from bertsmith.bench.step.results import Result, Work
from bertsmith.bench.step.side import OURS, StepSide
from bertsmith.model.config import BertConfig
from bertsmith.model.flop import step_flop

LADDER, TIME = "ladder:", "time:"
"""How the names of these cases begin."""
_ASKED = {"loaded": "data wait", "kernels": "the GPU's time"}
_OURS_ALONE_SECONDS = 20.0
"""Of the time, in which ours is measured where the peer was not done."""


@dataclass
class StepRun:
    """deadline: of time.monotonic(). only: cases whose name contains this. Found: results of matches and of the
    ladder's rungs, profiles by set, the best FLOP/s of a matrix product by precision, what the sides ran on, and the
    cases that were left out, with the reason.

    made: given the row of each case as soon as it is measured. failed: given the name of each case that is left out,
    and why; with it, a side of ours that ends by itself is such a case too, and without it raises BertsmithError."""

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
    made: Callable[[dict[str, Any]], None] = lambda row: None
    failed: Callable[[str, str], None] | None = None
    _files: dict[str, Path] = field(default_factory=dict)
    _sides: int = 0

    def all(self) -> None:
        """Runs everything that `only` lets through and that there is time for."""
        for group in self.groups():
            self.meet(group)
        self.profile(self.plan.matches[0].sets)
        for rung in self.plan.ladder:
            self.climb(rung)

    def groups(self) -> list[list[Match]]:
        """The matches, those that share a process of ours together."""
        return [list(group) for _, group in groupby(self.plan.matches, key=lambda match: match.ours)]

    def meet(self, matches: Sequence[Match]) -> None:
        """Matches of one side of ours, whose process stays for all of them."""
        wanted = [(match, [name for name in match.sets if self.only in match.case(name)]) for match in matches]
        every_name = [name for _, names in wanted for name in names]
        if not every_name:
            return
        with self._side(matches[0].ours, every_name) as ours:
            for match, names in wanted:
                with ExitStack() as peer_alive:
                    peer = peer_alive.enter_context(self._side(match.peer, names)) if match.peer and names else None
                    for name in names:
                        with self._noting(match.case(name)):
                            self._race(match, ours, peer, name)

    def _race(self, match: Match, ours: Child, peer: Child | None, name: str) -> None:
        say(f"measuring {match.case(name)}")
        ours.start_again()
        self._measure_peak(ours, match.ours, name)
        failed = ""
        if peer is not None:
            try:
                peer.ready()
            except (BertsmithError, OutOfTime) as why:  # what ends a peer ends nothing else
                if any(each.case.startswith(replace(match, peer=None).case(name)) for each in self.results):
                    raise SideFailed(ending(why), match.case(name)) from why  # ours over this set has its row
                peer, failed = None, ending(why)
        found = race(ours, peer, name, self.plan.passes, self.plan.seconds)
        found = replace(found, failed=failed or found.failed)
        result = self._result(match.case(name), match.ours, name, found, ours, peer)
        more: dict[str, dict[str, Any]] = (
            {"loaded": {"steps": self.plan.loaded_steps}} if self.plan.loaded_steps else {}
        )
        more |= {"kernels": {"passes": self.plan.passes}} if match.ours.compiled and match.ours.device != "cpu" else {}
        for question, how in more.items():
            try:
                answer: Any = ours.ask(question, name=name, **how)
                result = replace(result, **{question: answer})
            except (BertsmithError, OutOfTime) as why:  # the row is there without it
                note = f"{result.race.failed} {_ASKED[question]}: {ending(why)}".strip()
                result = replace(result, race=replace(result.race, failed=note))
        self.results.append(result)
        self.made(self.results[-1].row(self.peaks))

    def _result(
        self, case: str, side: StepSide, name: str, found: Race, ours: Child, peer: Child | None = None
    ) -> Result:
        held = int(ours.ask("memory")["bytes"])
        peer_held = int(peer.ask("memory")["bytes"]) if peer and found.peer else None
        return Result(case, side.precision, self._work(side, name), found, held, peer_held)

    def meet_peer(self, match: Match, names: Sequence[str], made: Callable[[str, Result], None]) -> None:
        """The peer of a match by itself, where ours and the peer have no room on one GPU together. made: is given each
        case as `Match.peer_case` has it, and what was found."""
        assert match.peer is not None
        with self._side(match.peer, names, leaves_time=False) as side:
            for name in names:
                with self._noting(match.peer_case(name)):
                    made(match.peer_case(name), self._alone(match.peer_case(name), match.peer, side, name))

    def _alone(self, case: str, side: StepSide, process: Child, name: str) -> Result:
        say(f"measuring {case}")
        process.start_again()
        self._measure_peak(process, side, name)
        found = race(process, None, name, self.plan.passes, self.plan.seconds / 2)
        return self._result(case, side, name, found, process)

    def profile(self, names: Sequence[str]) -> None:
        """Where the time of the profiled side goes, over these sets."""
        names = [name for name in names if self.only in f"{TIME} {name}"]
        if not names:
            return
        with self._side(self.plan.profiled, names) as side:
            for name in names:
                with self._noting(f"{TIME} {name}"):
                    say(f"profiling {name}")
                    self.profiles[name] = side.ask("profile", name=name)
                    self.made({"case": f"{TIME} {name}", **self.profiles[name]})

    def climb(self, rung: Rung) -> None:
        """Measures a rung of the ladder, if `only` lets it through."""
        case = f"{LADDER} {rung.what}"
        if self.only not in case:
            return
        with self._noting(case), self._side(rung.side, [rung.set]) as side:
            self.rungs.append(self._alone(case, rung.side, side, rung.set))
            self.made(self.rungs[-1].row(self.peaks))

    @contextmanager
    def _noting(self, case: str) -> Iterator[None]:
        """Notes a case that is left out because the time is over or our side cannot do it; the next ones go on."""
        try:
            yield
        except OutOfTime:
            self._leave_out(case, NO_TIME)
        except BertsmithError as why:
            if self.failed is None and not isinstance(why, SideFailed):
                raise
            self._leave_out(case, why.what)

    def _leave_out(self, case: str, why: str) -> None:
        self.left_out.append(f"{case}: {why}")
        if self.failed is not None:
            self.failed(case, why)

    def _side(self, side: StepSide, names: Sequence[str], leaves_time: bool = True) -> Child:
        """Starts a side with these sets; it is ready later. leaves_time: a peer ends early enough for ours."""
        self._sides += 1
        sets = {name: self._file(name) for name in names}
        deadline = self.deadline - _OURS_ALONE_SECONDS if leaves_time and side.side != OURS else self.deadline
        return start_side(side, sets, self.folder / f"side-{self._sides}", deadline)

    def _file(self, name: str) -> Path:
        if name not in self._files:
            self._files[name] = self.folder / f"set-{len(self._files)}.npz"
            write_batches(self._files[name], self.plan.sets[name])
        return self._files[name]

    def _work(self, side: StepSide, name: str) -> Work:
        """Of a turn."""
        lengths = np.concatenate([batch.layout.lengths for batch in self.plan.sets[name]]).astype(np.float64)
        masked = sum(len(batch.masked_positions) for batch in self.plan.sets[name])
        flop = step_flop(
            BertConfig(**side.model), float(lengths.sum()), float((lengths**2).sum()), masked, len(lengths)
        )
        passes = self.plan.passes
        return Work(passes * int(lengths.sum()), passes * len(lengths), passes * flop)

    def _measure_peak(self, process: Child, side: StepSide, name: str) -> None:
        """Keeps the best matrix product that a side has reached in its precision, and what it runs on."""
        self.ran_on |= process.ready()
        found = float(process.ask("rate", name=name)["flops"])
        self.peaks[side.precision] = max(found, self.peaks.get(side.precision, 0.0))
