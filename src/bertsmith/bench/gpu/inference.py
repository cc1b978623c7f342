"""Calls of inference at the shapes of NVIDIA's BERT: from ids to scores on the host, with the latencies of calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say, size
from bertsmith.bench.gpu.rows import Part, Rows
from bertsmith.bench.process import Child
from bertsmith.bench.reference.bench import Case, row_of
from bertsmith.bench.step.plan import GpuSizes, gpu_shape
from bertsmith.bench.table import Table

CASES = [(1, 128, "bf16"), (8, 128, "bf16"), (1, 384, "bf16"), (8, 384, "bf16"), (32, 384, "bf16"), (32, 384, "tf32")]
"""Sequences of a call, their length, and the precision."""
_START_SECONDS, _CASE_SECONDS = 10.0, 2.5
_PERCENTILES = (50, 90, 95, 99)


def inference_parts(sizes: GpuSizes, folder: Path, rows: Rows, calls: int, seconds: float) -> list[Part]:
    """The rows of each model, which share a process for each precision. calls, seconds: the fewest of a row."""
    cases = [Case("SQuAD", "inference", *case) for case in CASES]
    # A processor has no tf32, which stands for fp32 there.
    stands_for = {"tf32": "fp32"} if sizes.device == "cpu" else {}

    def part(model: str) -> Part:
        named = {f"inference: {model}, {case.batch} x {case.length}, {case.precision}": case for case in cases}

        def one(precision: str, names: Sequence[str], deadline: float) -> None:
            """Those of a precision, which is a matter of the whole process."""
            spec = {"model": gpu_shape(model, sizes.vocabulary), "device": sizes.device}
            own = {name: replace(named[name], precision=stands_for.get(precision, precision)) for name in names}
            where, left = folder / f"inference-{model}-{precision}", list(names)
            while left:  # a new process after a row that failed, which may have ended it
                spec["case"] = asdict(own[left[0]])
                with Child("bertsmith.bench.reference.worker", spec, where, None, deadline) as child:
                    while left and measured(child, left.pop(0), own):
                        pass

        def measured(child: Child, name: str, own: dict[str, Case]) -> bool:
            """Adds a row, or the reason why there is none."""
            say(f"measuring {name}")
            try:
                found = child.ask("run", warmup=3, steps=calls, seconds=seconds, case=asdict(own[name]))
            except BertsmithError as why:
                rows.fail(name, why.what)
                return False
            rows.add({**row_of(named[name], found["seconds"], found["bytes"]), "case": name})
            return True

        def measure(names: Sequence[str], deadline: float) -> None:
            for precision in dict.fromkeys(named[name].precision for name in names):
                one(precision, [name for name in names if named[name].precision == precision], deadline)

        return Part(tuple(named), measure, _table, 2 * _START_SECONDS + _CASE_SECONDS * len(named))

    return [part(model) for model in sizes.models]


def _table(found: Sequence[dict[str, Any]]) -> Table:
    shown = [
        [
            row["case"].partition(": ")[2],
            f"{row['sequences_per_second']:,.1f}",
            *(f"{row[f'p{percent}_ms']:,.2f}" for percent in _PERCENTILES),
            f"{row['steps']:,}",
            size(row["memory_bytes"]),
        ]
        for row in found
    ]
    head = ["", "sequences/s", *(f"p{percent} ms" for percent in _PERCENTILES), "calls", "memory"]
    return Table(
        "Inference: SQuAD's head, from ids to scores on the host, every sequence of the whole length", head, shown
    )
