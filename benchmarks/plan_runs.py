"""Plans beside runs: `bert-mini` and BERT-base on one and two ranks of this machine's CPU, a few steps of each, and a
model fine-tuned for an epoch.

    python benchmarks/plan_runs.py --corpus corpus --model all-MiniLM-L6-v2 --mrpc glue/MRPC --json plan-runs.json

Each run is planned first, then trained with a line of metrics every step; the first step of a phase is left out.
Compared are the most memory of a rank (the first one's `memory_bytes`), and the seconds of a step in both phases; of
fine-tuning, all seconds from the start of the command to its end, with its start, evaluations and report. The machine
should do nothing else: a plan is measured in CPU time, and a run is not.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bertsmith.base.files import read_json, write_json
from bertsmith.base.tables import aligned
from bertsmith.base.versions import code_state
from bertsmith.bench.machine import machine
from bertsmith.training.records.meters import read_metrics

STEPS = 3
# Global batches of both phases, and tokens of a micro-batch: so that a step has several, and a run takes minutes.
CASES = {
    "bert-mini": ("256", "64", "8192"),
    "bert-base-nvlamb": ("64", "16", "2048"),
}
FINE_TUNED = "MRPC"
WHOLE = "whole run"
UNITS = {"memory": ("GB", 1e-9), WHOLE: ("s", 1.0)}


def planned(words: list[str], ranks: int, folder: Path) -> dict[str, Any]:
    """The figures of a plan, and the seconds that it took."""
    path = folder / "plan.json"
    took = bertsmith(["plan", *words, "--gpu", "cpu", "--gpus", str(ranks), "--json", str(path)])
    return {**read_json(path), "plan_seconds": took}


def trained(words: list[str], ranks: int, out: Path) -> tuple[float, list[dict[str, Any]]]:
    """The seconds of a run, and its metrics of every step."""
    seconds = bertsmith([*words, "--out", str(out), "--ranks", str(ranks), "--log-every", "1"])
    return seconds, [each for each in read_metrics(out / "metrics.jsonl") if each["kind"] == "train"]


def bertsmith(arguments: list[str]) -> float:
    """Runs a verb, and gives its seconds; what it says is shown where it fails."""
    start = time.perf_counter()
    done = subprocess.run([sys.executable, "-m", "bertsmith", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"bertsmith {' '.join(arguments)}\n{done.stderr}")
    return time.perf_counter() - start


def pretrained(name: str, ranks: int, corpus: Path) -> dict[str, Any]:
    """A row: what was planned of pre-training, what was found, and the errors of the plan."""
    first, second, most = CASES[name]
    words = [name, "--corpus", str(corpus), "--phase1.steps", str(STEPS), "--phase2.steps", str(STEPS)]
    words += ["--phase1.global-batch", first, "--phase2.global-batch", second, "--micro-batch-tokens", most]
    with tempfile.TemporaryDirectory() as folder:
        plan = planned(words, ranks, Path(folder))
        less = ["--evaluate-every", "1000", "--save-every", "1000", "--evaluate-instances", "16"]
        _, lines = trained(["pretrain", *words, *less], ranks, Path(folder) / "run")
    found = {}
    for stage, phase in zip(plan["stages"], (1, 2), strict=True):
        later = [each["seconds_per_step"] for each in lines if each["phase"] == phase and each["phase_step"] > 1]
        found[stage["name"]] = statistics.median(later)
    steps = {each["name"]: each["seconds_per_step"]["total"] for each in plan["stages"]}
    return compared(name, ranks, plan, steps, lines, found)


def fine_tuned(ranks: int, model: Path, data: Path) -> dict[str, Any]:
    """The same of an epoch of fine-tuning, whose seconds are those of the whole run."""
    words = ["mrpc", "--model", str(model), "--data", str(data), "--epochs", "1"]
    with tempfile.TemporaryDirectory() as folder:
        plan = planned(words, ranks, Path(folder))
        # Saved once on the way, because later steps have the save's copies beside them.
        seconds, lines = trained(["finetune", *words, "--save-every", "60"], ranks, Path(folder) / "run")
    return compared(FINE_TUNED, ranks, plan, {WHOLE: 3600 * plan["hours"]}, lines, {WHOLE: seconds})


def compared(
    name: str,
    ranks: int,
    plan: dict[str, Any],
    seconds: dict[str, float],
    lines: list[dict[str, Any]],
    found: dict[str, float],
) -> dict[str, Any]:
    """seconds, found: as planned and as measured, by what they are of. lines: the run's metrics."""
    ours = {"memory": plan["memory_bytes"]["needed"], **seconds}
    theirs = {"memory": max(each["memory_bytes"] for each in lines), **found}
    errors = {what: ours[what] / theirs[what] - 1 for what in ours}
    took, precision = plan["plan_seconds"], plan["precision"]
    row = {"run": name, "ranks": ranks, "planned": ours, "found": theirs, "errors": errors}
    return row | {"plan_seconds": took, "precision": precision}


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as aligned text."""
    head = ["run", "ranks", "", "planned", "found", "error"]
    cells = [head]
    for row in rows:
        for what, error in row["errors"].items():
            unit, factor = UNITS.get(what, ("s a step", 1.0))
            planned, found = (f"{row[side][what] * factor:.2f}" for side in ("planned", "found"))
            cells.append([row["run"], str(row["ranks"]), f"{what}, {unit}", planned, found, f"{error:+.1%}"])
    return aligned(cells, "lrlr")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="a prepared corpus")
    parser.add_argument("--model", type=Path, help="the folder of a model to fine-tune; none is without it")
    parser.add_argument("--mrpc", type=Path, help="the folder of MRPC's files, with --model")
    parser.add_argument("--json", type=Path, help="where the rows go")
    parser.add_argument("--only", default="", help="runs whose name holds this")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    if bool(options.model) != bool(options.mrpc):
        parser.error("--model and --mrpc go together")
    about, rows = machine(), []
    for name in CASES:
        if options.only in name:
            rows += [pretrained(name, ranks, options.corpus) for ranks in options.ranks]
    if options.model and options.only in FINE_TUNED:
        rows += [fine_tuned(ranks, options.model, options.mrpc) for ranks in options.ranks]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    if options.json:
        made = {"commit": code_state(), "machine": about, "load_at_the_end": load, "rows": rows}
        write_json(options.json, made)
    print("\n".join(table(rows)))
    print(f"processes running at the end, a minute's average: {load}")


if __name__ == "__main__":
    main()
