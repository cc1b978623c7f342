"""`bertsmith bench finetune`: the steps of a fine-tuning run beside those of transformers' Trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from bertsmith.base.device import Device, choose_device
from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import data_folder
from bertsmith.base.log import say
from bertsmith.bench.finetune.results import row_of, speed_table
from bertsmith.bench.finetune.rows import TASKS, BenchTask, Prepared, prepare_task
from bertsmith.bench.finetune.side import Case, Side, cases_of
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.process import NO_TIME, Child, OutOfTime, SideFailed
from bertsmith.bench.step.results import time_table
from bertsmith.bench.step.run import TIME
from bertsmith.bench.step.side import TRANSFORMERS
from bertsmith.bench.table import Report
from bertsmith.bench.text import name_sources
from bertsmith.bench.turns import FEWEST_ROUNDS, MOST_ROUNDS, take_turns

PEERS = (TRANSFORMERS,)
MODEL = Path("weights", "all-MiniLM-L6-v2")
"""In the data folder."""
_SECONDS, _QUICK_SECONDS = 60.0, 3.0
_QUICK_STEPS = 2
_RULES = (
    "the same rows, model, batch, longest length and dropout on all sides; each side is a process of its own",
    "ours is what `bertsmith finetune` runs, the peer is transformers' Trainer with DataCollatorWithPadding: data "
    "handling, logs and the optimizer are part of a step, encoding rows and saving are not",
    "as shipped: fp32, and the very batches of ours, padded to their longest row; grouped by length: the Trainer's own "
    "batches of rows of like lengths, in an order in which any steps in a row are a fair sample of the epoch",
    f"{FEWEST_ROUNDS} to {MOST_ROUNDS} rounds, an odd number, after one turn each that is not counted; in a round all "
    "sides take a turn, beginning with another side each time; figures are those of the round with the median ratio",
    "tokens are real ones: padding does not count",
)


def bench_finetune(options: BenchOptions, folder: Path) -> Report:
    """Measures in `folder`. Raises BertsmithError for an unknown peer, a missing model or device, an `only` that no
    case matches, where no task's rows are in the data folder, and if a side of ours ends by itself."""
    deadline = options.deadline()
    peers = options.peers(PEERS, "finetune")
    model = options.model or data_folder() / MODEL
    if not (model / "config.json").is_file():
        what = "there is no model in this folder"
        raise BertsmithError(what, model, "name a BERT folder of Hugging Face's layout with --model")
    bench = FinetuneBench(options, model, choose_device(options.device, "auto"), folder, deadline, bool(peers))
    for task in TASKS:
        bench.measure(replace(task, steps=_QUICK_STEPS) if options.quick else task)
    return bench.report()


@dataclass
class FinetuneBench:
    """deadline: of time.monotonic(). Found: rows of the table, profiles of ours by task, what ours ran on, a line for
    each task, and what was left out, with the reason."""

    options: BenchOptions
    model: Path
    device: Device
    folder: Path
    deadline: float
    has_peer: bool
    rows: list[dict[str, Any]] = field(default_factory=list)
    profiles: dict[str, dict[str, Any]] = field(default_factory=dict)
    ran_on: dict[str, str] = field(default_factory=dict)
    tasks: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    _cases: list[Case] = field(default_factory=list)

    def measure(self, task: BenchTask) -> None:
        """The cases of a task that `only` lets through, their sides in turns; and where the time of ours goes."""
        self._cases += (every := cases_of(task.name, self.device.precision, self.has_peer))
        cases = [case for case in every if self.options.only in case.name]
        profiled = self.options.only in f"{TIME} {task.name}"
        if not cases and not profiled:
            return
        if not task.files():
            self.left_out.append(f"{task.name}: its files are not in the data folder ($BERTSMITH_DATA)")
            return
        folder = self.folder / task.benchmark
        sides = dict.fromkeys(side for case in cases for side in (case.ours, case.peer) if side)
        say(f"measuring {task.name}")
        try:
            prepared = prepare_task(task, self.model, folder)
            with ExitStack() as alive:
                device, children = str(self.device.torch_device), dict[Side, Child]()
                for number, side in enumerate(sides or (every[0].ours,)):
                    child = side.start(prepared, self.model, device, folder / str(number), self.deadline)
                    children[side] = alive.enter_context(child)
                if cases:
                    self._race(prepared, children, cases)
                if profiled and every[0].ours in children:
                    self._profile(prepared, children[every[0].ours])
        except OutOfTime:
            self.left_out.append(f"{task.name}: {NO_TIME}")

    def _race(self, prepared: Prepared, children: Mapping[Side, Child], cases: Sequence[Case]) -> None:
        seconds = _QUICK_SECONDS if self.options.quick else _SECONDS
        turns = take_turns(children, prepared.task.steps, seconds)
        facts = {side: children[side].ready() for side in turns.seconds}
        memory = {side: int(children[side].ask("memory")["bytes"]) for side in facts}
        padding = {side: float(fact["padding_share"]) for side, fact in facts.items() if not side.is_ours}
        self.ran_on |= next((fact for side, fact in facts.items() if side.is_ours), {})
        self.tasks.append(prepared.about())
        self.rows += [row_of(case, prepared, turns, memory, padding) for case in cases]

    def _profile(self, prepared: Prepared, ours: Child) -> None:
        """Where the time of ours goes in the precision that a run takes by itself."""
        try:
            self.ran_on |= ours.ready()
            self.profiles[prepared.task.name] = ours.ask("profile", steps=prepared.task.steps)
        except SideFailed as why:
            self.left_out.append(f"{TIME} {prepared.task.name}: {why.what}")

    def report(self) -> Report:
        """What was found. Raises BertsmithError where nothing was."""
        if not self.rows and not self.profiles:
            what = f"no case contains '{self.options.only}'"
            if self.left_out:
                what = f"nothing was measured: {self.left_out[0]}"
            cases = "; ".join([*(case.name for case in self._cases), *(f"{TIME} {task.name}" for task in TASKS)])
            raise BertsmithError(what, "bench finetune", f"cases are: {cases}")
        about = [
            f"model: {name_sources([str(self.model)])}",
            *self.tasks,
            *_RULES,
            *(f"left out: {each}" for each in self.left_out),
        ]
        tables = [speed_table(self.rows)] if self.rows else []
        tables += [time_table(self.profiles, f"ours, {self.device.precision}")] if self.profiles else []
        profiles = [{"case": f"{TIME} {name}", **found} for name, found in self.profiles.items()]
        return Report(about, [*self.rows, *profiles], tables, self.ran_on)
