"""Whole fine-tunings from a small model, each in a process of its own: scores and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertsmith.base.files import data_folder
from bertsmith.base.log import say
from bertsmith.bench.finetune.bench import MODEL
from bertsmith.bench.gpu.rows import Part, Rows
from bertsmith.bench.process import Child
from bertsmith.bench.table import Table
from bertsmith.tasks.benchmarks.benchmark import benchmarks

CHANGES: dict[str, dict[str, Any]] = {
    "sst2": {"epochs": 1},
    "squad1": {"epochs": 1, "batch": 32, "learning_rate": 5e-5},
}
"""Of the settings of a benchmark: one pass, and for SQuAD a batch whose steps a GPU does not do faster when smaller."""

SECONDS = {"sst2": 60.0, "squad1": 120.0}
"""Expected, from rows on disk to figures."""


def finetuning_parts(device: str, folder: Path, rows: Rows) -> list[Part]:
    """A row for each benchmark, from the model of the data folder."""
    return [_part(name, device, folder / f"finetuning-{name}", rows) for name in CHANGES]


def _part(benchmark: str, device: str, folder: Path, rows: Rows) -> Part:
    name = f"fine-tuning: {benchmark} from {MODEL.name}, {CHANGES[benchmark]['epochs']} epoch"

    def measure(names: Sequence[str], deadline: float) -> None:
        data = data_folder()
        if not (data / MODEL / "config.json").is_file() or not benchmarks()[benchmark].found(data, ("train", "dev")):
            rows.fail(name, f"{MODEL} or the files of {benchmark} are not in the data folder ($BERTSMITH_DATA)")
            return
        say(f"measuring {name}")
        spec: dict[str, Any] = {"benchmark": benchmark, "model": data / MODEL, "data": data, "device": device}
        spec["changes"] = CHANGES[benchmark]
        with Child("bertsmith.bench.gpu.finetuning_run", spec, folder, None, deadline) as child:
            found = child.ask("run")
        rows.add({"case": name, **found, "rows_per_second": found["rows"] / found["seconds"]})

    return Part((name,), measure, _table, SECONDS[benchmark])


def _table(found: Sequence[dict[str, Any]]) -> Table:
    shown = []
    for row in found:
        name = row["case"].partition(": ")[2]
        published = benchmarks()[name.split()[0]].metrics
        figures = ", ".join(f"{metric} {row['figures'][metric]:.4f}" for metric in published)
        shown.append([name, figures, f"{row['seconds']:,.1f}", f"{row['rows']:,}"])
    return Table("Fine-tuning, from rows on disk to figures on the dev rows", ["", "figures", "seconds", "rows"], shown)
