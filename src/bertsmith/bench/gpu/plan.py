"""The parts of a check of a GPU: correctness, then the most valuable first, ours before the peer's.

The seconds that parts are expected to take are guesses from a CPU's for imports and compilers, and from the expected
times of steps; those of our steps, of kernels and of products are about what an H200 took.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from bertsmith.bench.gpu.correctness import correctness_parts
from bertsmith.bench.gpu.finetuning import finetuning_parts
from bertsmith.bench.gpu.inference import inference_parts
from bertsmith.bench.gpu.peers import peer_parts
from bertsmith.bench.gpu.products import products_part
from bertsmith.bench.gpu.rows import Part, Rows
from bertsmith.bench.gpu.update import update_parts
from bertsmith.bench.step.plan import GpuSizes, Match, Rung, gpu_plan, graph_matches
from bertsmith.bench.step.results import ladder_table, steps_table, with_gains
from bertsmith.bench.step.run import LADDER, StepRun
from bertsmith.bench.table import Table

START_SECONDS, COMPILE_SECONDS, SET_SECONDS = 10.0, 20.0, 14.0
"""Of a process with its model, of the graphs of a shape, and of a set of batches."""


@dataclass(frozen=True)
class CheckSizes:
    """step: of the pre-training steps; its models and device are those of other rows too. calls, seconds: the fewest
    of inference. tiny: whether kernels are checked at sizes for an interpreter."""

    step: GpuSizes = field(default_factory=lambda: GpuSizes(seconds=4.0))
    calls: int = 100
    seconds: float = 1.0
    tiny: bool = False

    @classmethod
    def tiny_on(cls, device: str) -> CheckSizes:
        """Every row in seconds, on a CPU too; the figures say nothing about speed."""
        step = GpuSizes(device, ("tiny",), (128,), 512, passes=1, seconds=0.1, compiled=False, loaded_steps=2)
        step = replace(step, small=(("tiny", 256),))
        return cls(step, calls=3, seconds=0.0, tiny=True)


def check_parts(
    sizes: CheckSizes, folder: Path, rows: Rows, tests: Callable[[float], dict[str, Any]]
) -> tuple[list[Part], StepRun]:
    """All parts in their order, and what runs the steps among them. folder: for what is made on the way. tests: how
    they end by a deadline of time.monotonic(): {"ended": "passed", "failed": lines about those that failed}."""
    plan = gpu_plan(sizes.step, {})
    sets, graphs = graph_matches(sizes.step, plan)
    run = StepRun(
        replace(plan.alone(), sets={**plan.sets, **sets}),
        folder,
        0.0,
        ran_on=rows.machine,
        made=rows.add,
        failed=rows.fail,
    )
    of_first = [_steps(run, group) for group in run.groups() if group[0].model == plan.model]
    of_others = [_steps(run, group) for group in run.groups() if group[0].model != plan.model]
    table = partial(ladder, names=[f"{LADDER} {rung.what}" for rung in plan.ladder], model=plan.model)
    inference = inference_parts(sizes.step, folder, rows, sizes.calls, sizes.seconds)
    peers, with_dropout, flash, other_peers = peer_parts(run, plan, rows)
    as_graphs = [_steps(run, [match]) for match in graphs]
    parts = [
        *correctness_parts(sizes.step, folder, rows, sizes.tiny),
        *of_first,
        *update_parts(sizes.step, folder, rows),
        products_part(sizes.step, folder, rows),
        as_graphs[0],
        inference[0],
        *peers,
        *(_rung(run, rung, table, rows) for rung in plan.ladder),
        *finetuning_parts(sizes.step.device, folder, rows),
        *with_dropout,
        *as_graphs[1:],
        _tests(tests, rows),
        *flash,
        *of_others,
        *inference[1:],
        *other_peers,
    ]
    return parts, run


def ladder(found: Sequence[dict[str, Any]], names: Sequence[str], model: str) -> Table:
    """The rungs, which calls may have measured in any order. names: of all, in order."""
    return ladder_table(with_gains(found, names), model)


TESTS = "tests: those that need a GPU"


def _tests(tests: Callable[[float], dict[str, Any]], rows: Rows) -> Part:
    def measure(names: Sequence[str], deadline: float) -> None:
        rows.add({"case": TESTS, **tests(deadline)})

    def table(found: Sequence[dict[str, Any]]) -> Table:
        shown = [[TESTS.partition(": ")[2], row["ended"]] for row in found]
        shown += [["", line] for row in found for line in row.get("failed", ())]
        return Table("Tests", ["", "ended"], shown)

    return Part((TESTS,), measure, table, 180.0)


def _steps(run: StepRun, group: Sequence[Match]) -> Part:
    def measure(names: Sequence[str], deadline: float) -> None:
        run.deadline = deadline
        left = [replace(match, sets=tuple(each for each in match.sets if match.case(each) in names)) for match in group]
        run.meet(left)

    names = tuple(match.case(name) for match in group for name in match.sets)
    seconds = START_SECONDS + COMPILE_SECONDS + SET_SECONDS * len(names)
    return Part(names, measure, steps_table, seconds)


def _rung(run: StepRun, rung: Rung, table: Callable[..., Any], rows: Rows) -> Part:
    """A rung that is among the steps has the figures of that row, where this call measured it."""
    name = f"{LADDER} {rung.what}"
    same = [match.case(rung.set) for match in run.plan.matches if match.ours == rung.side and rung.set in match.sets]

    def measure(names: Sequence[str], deadline: float) -> None:
        there = [row for row in rows.made if row["case"] in same and row["call"] == rows.call]
        if there:
            found = {what: value for what, value in there[0].items() if what not in ("kernels", "expected")}
            rows.add({**found, "case": name, "note": f"the row '{there[0]['case']}'"})
            return
        run.deadline = deadline
        run.climb(rung)

    compiled = COMPILE_SECONDS if rung.side.compiled else 0.0
    return Part((name,), measure, table, START_SECONDS + compiled + SET_SECONDS)
