"""Calls of inference at the shapes of NVIDIA's BERT: from ids to scores on the host, with the latencies of calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bertsmith.base.log import say, size
from bertsmith.bench.gpu.rows import Part, Rows
from bertsmith.bench.process import Child, SideFailed
from bertsmith.bench.reference.bench import row_of
from bertsmith.bench.reference.case import Case
from bertsmith.bench.step.plan import GpuSizes, shape
from bertsmith.bench.table import Table

LENGTHS, BATCHES = (128, 384), (1, 8)
_PERCENTILES = (50, 90, 95, 99)


def inference_parts(sizes: GpuSizes, folder: Path, rows: Rows, calls: int, seconds: float) -> list[Part]:
    """The rows of each model, which share a process. calls, seconds: the fewest of a row."""
    cases = [Case("SQuAD", "inference", batch, length, "bf16") for length in LENGTHS for batch in BATCHES]

    def part(model: str) -> Part:
        named = {f"inference: {model}, {case.batch} x {case.length}, {case.precision}": case for case in cases}

        def measure(names: Sequence[str], deadline: float) -> None:
            spec = {"case": asdict(named[names[0]]), "model": shape(model, sizes.vocabulary), "device": sizes.device}
            with Child(
                "bertsmith.bench.reference.worker", spec, folder / f"inference-{model}", None, deadline
            ) as child:
                for name in names:
                    say(f"measuring {name}")
                    how = {"warmup": 3, "steps": calls, "seconds": seconds}
                    try:
                        found = child.ask("run", **how, case=asdict(named[name]))
                    except SideFailed as why:
                        rows.fail(name, why.what)
                    else:
                        rows.add({**row_of(named[name], found["seconds"], found["bytes"]), "case": name})

        return Part(tuple(named), measure, _table)

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
    head = ["", "sequences/s", *(f"p{percent} ms" for percent in _PERCENTILES), "calls", "memory so far"]
    return Table(
        "Inference: SQuAD's head, from ids to scores on the host, every sequence of the whole length", head, shown
    )
