"""`bertsmith bench reference`: what NVIDIA's BERT has as its benchmark modes: training and inference of pre-training,
SQuAD and GLUE, with sequences per second and the latencies of steps and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bertsmith.base.device import choose_device
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say, size
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.process import Child, OutOfTime, SideFailed, ending, nothing_measured
from bertsmith.bench.step.plan import shape
from bertsmith.bench.table import Report, Table

PERCENTILES = (50, 90, 95, 99, 100)
"""The reference's; that of 100 is the slowest."""
TaskName = Literal["pre-training", "SQuAD", "GLUE"]
Mode = Literal["training", "inference"]
LENGTHS: dict[TaskName, tuple[int, ...]] = {"pre-training": (128, 512), "SQuAD": (384,), "GLUE": (128,)}
"""Those of NVIDIA's recipes."""
_CPU_TOKENS, _GPU_TOKENS = 2048, 16_384
"""Of a training step."""
_CPU_CALLS, _GPU_CALLS = (1, 8), (1, 8, 64)
"""Sequences of a call."""
_WARMUP, _STEPS, _SECONDS = 3, 20, 5.0
_QUICK_WARMUP, _QUICK_STEPS, _QUICK_SECONDS = 1, 3, 0.1


@dataclass(frozen=True)
class Case:
    """batch: sequences of a step or a call. precision: fp32, tf32 or bf16."""

    task: TaskName
    mode: Mode
    batch: int
    length: int
    precision: str

    @property
    def name(self) -> str:
        """Such as "SQuAD training, 5 x 384, bf16"."""
        return f"{self.task} {self.mode}, {self.batch} x {self.length}, {self.precision}"


def cases_of(precisions: Sequence[str], is_cpu: bool) -> list[Case]:
    """Training in the order of a model's life, then inference."""
    tokens, calls = (_CPU_TOKENS, _CPU_CALLS) if is_cpu else (_GPU_TOKENS, _GPU_CALLS)
    shapes = [(task, length) for task, lengths in LENGTHS.items() for length in lengths]
    found = [Case(task, "training", max(1, tokens // n), n, each) for task, n in shapes for each in precisions]
    found += [Case(task, "inference", batch, n, each) for task, n in shapes for batch in calls for each in precisions]
    return found


def bench_reference(options: BenchOptions, folder: Path) -> Report:
    """Measures in `folder`. Raises BertsmithError for a device that is not there, an `only` that no case matches, and
    where no case was measured."""
    deadline = options.deadline()
    device = choose_device(options.device, "auto")
    every = cases_of(tuple(dict.fromkeys((device.precision, "fp32"))), device.is_cpu)
    cases = [case for case in every if options.only in case.name]
    if not cases:
        known = "; ".join(case.name for case in every)
        raise BertsmithError(f"no case contains '{options.only}'", "bench reference", f"cases are: {known}")
    model = "tiny" if options.quick else "base" if device.is_cpu else "large"
    warmup, steps, seconds = (
        (_QUICK_WARMUP, _QUICK_STEPS, _QUICK_SECONDS) if options.quick else (_WARMUP, _STEPS, _SECONDS)
    )
    rows, left_out, ran_on = list[dict[str, Any]](), list[str](), dict[str, str]()
    for number, case in enumerate(cases):
        say(f"measuring {case.name}")
        spec = {"case": asdict(case), "model": shape(model), "device": str(device.torch_device)}
        try:
            with Child("bertsmith.bench.reference.worker", spec, folder / str(number), None, deadline) as child:
                answer = child.ask("run", warmup=warmup, steps=steps, seconds=seconds)
                ran_on |= child.ready()
        except (OutOfTime, SideFailed) as why:
            left_out.append(f"{case.name}: {ending(why)}")
        else:
            rows.append(row_of(case, answer["seconds"], answer["bytes"]))
    if not rows:
        raise nothing_measured(left_out, "bench reference")
    about = [
        f"BERT-{model} with random weights and random ids, dropout 0.1 in training; every sequence has the whole "
        "length, to which the reference pads; each case is a process of its own",
        "pre-training: a step of masked words and next sentences with LAMB, or their losses; SQuAD and GLUE (pairs in "
        "two classes): a step with AdamW, or from ids to scores on the host; torch.compile is not used",
        f"warm-up: {warmup} steps or calls that are not counted; then at least {steps}, until {seconds:g} s are over; "
        "the device is waited for after each; latency is of one step or call, in ms",
        *(f"left out: {each}" for each in left_out),
    ]
    return Report(about, rows, tables(rows), ran_on)


def row_of(case: Case, seconds: Sequence[float], memory: int) -> dict[str, Any]:
    """A case as JSON can hold it. seconds: of each step or call. memory: bytes, the most that were held."""
    milliseconds = 1e3 * np.array(seconds)
    return {
        "case": case.name,
        **asdict(case),
        "steps": len(seconds),
        "sequences_per_second": case.batch * len(seconds) / sum(seconds),
        "mean_ms": float(milliseconds.mean()),
        **{f"p{percent}_ms": float(np.percentile(milliseconds, percent)) for percent in PERCENTILES},
        "memory_bytes": memory,
    }


def tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """One of training, one of inference."""
    head = ["", "sequences/s", "mean ms", *(f"{percent}% ms" for percent in PERCENTILES), "steps", "memory"]
    found = []
    for mode in dict.fromkeys(row["mode"] for row in rows):
        lines = [
            [
                f"{row['task']}, {row['batch']} x {row['length']}, {row['precision']}",
                f"{row['sequences_per_second']:,.1f}",
                f"{row['mean_ms']:,.1f}",
                *(f"{row[f'p{percent}_ms']:,.1f}" for percent in PERCENTILES),
                f"{row['steps']:,}",
                size(row["memory_bytes"]),
            ]
            for row in rows
            if row["mode"] == mode
        ]
        found.append(Table(mode.capitalize(), head, lines))
    return found
