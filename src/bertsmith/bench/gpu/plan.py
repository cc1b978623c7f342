"""The parts of a check of a GPU, the most valuable first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bertsmith.bench.gpu.finetuning import finetuning_parts
from bertsmith.bench.gpu.inference import inference_parts
from bertsmith.bench.gpu.rows import Part, Rows
from bertsmith.bench.gpu.update import update_parts
from bertsmith.bench.step.plan import GpuSizes, Match, Rung, gpu_plan
from bertsmith.bench.step.results import ladder_table, steps_table, time_table
from bertsmith.bench.step.run import LADDER, TIME, StepRun
from bertsmith.bench.table import Table


@dataclass(frozen=True)
class CheckSizes:
    """step: of the pre-training steps; its models and device are those of other rows too. calls, seconds: the fewest
    of inference."""

    step: GpuSizes = field(default_factory=GpuSizes)
    calls: int = 100
    seconds: float = 1.0

    @classmethod
    def tiny(cls, device: str) -> CheckSizes:
        """Every row in seconds, on a CPU too; the figures say nothing about speed."""
        step = GpuSizes(device, ("tiny",), (128,), 512, passes=1, seconds=0.1, compiled=False, loaded_steps=2)
        return cls(step, calls=3, seconds=0.0)


def check_parts(sizes: CheckSizes, folder: Path, rows: Rows, only: str = "") -> tuple[list[Part], StepRun]:
    """All parts in their order, and what runs the steps among them. folder: for what is made on the way."""
    run = StepRun(gpu_plan(sizes.step, {}), folder, 0.0, only, ran_on=rows.machine, made=rows.add, failed=rows.fail)
    of_first = [_steps(run, group) for group in run.groups() if group[0].model == run.plan.model]
    of_others = [_steps(run, group) for group in run.groups() if group[0].model != run.plan.model]
    table = partial(ladder_table, model=run.plan.model)
    ladder = [_rung(run, rung, table) for rung in run.plan.ladder]
    updates = update_parts(sizes.step, folder, rows)
    inference = inference_parts(sizes.step, folder, rows, sizes.calls, sizes.seconds)
    finetuning = finetuning_parts(sizes.step.device, folder, rows)
    return [*of_first, *updates, *inference, *ladder, *finetuning, *of_others, _profile(run)], run


def _steps(run: StepRun, group: Sequence[Match]) -> Part:
    def measure(names: Sequence[str], deadline: float) -> None:
        run.deadline = deadline
        run.meet(group)

    return Part(tuple(match.case(name) for match in group for name in match.sets), measure, steps_table)


def _rung(run: StepRun, rung: Rung, table: Callable[..., Any]) -> Part:
    def measure(names: Sequence[str], deadline: float) -> None:
        run.deadline = deadline
        run.climb(rung)

    return Part((f"{LADDER} {rung.what}",), measure, table)


def _profile(run: StepRun) -> Part:
    sets = run.plan.matches[0].sets

    def measure(names: Sequence[str], deadline: float) -> None:
        run.deadline = deadline
        run.profile(sets)

    def table(rows: Sequence[dict[str, Any]]) -> Table:
        profiles = {row["case"].removeprefix(f"{TIME} "): row for row in rows}
        return time_table(profiles, f"{run.plan.model}, ours, {run.plan.profiled.label}")

    return Part(tuple(f"{TIME} {name}" for name in sets), measure, table)
