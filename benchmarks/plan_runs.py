"""Plans beside runs: `bert-mini` and BERT-base on one and two ranks of this machine's CPU, a few steps of each.

    python benchmarks/plan_runs.py --corpus corpus --json benchmarks/results/plan-runs.json

Each run is planned first, then trained with a line of metrics every step; the first step of a phase is left out.
Compared are the most memory of a rank (the first one's `memory_bytes`), and the seconds of a step in both phases. The
machine should do nothing else: a plan is measured in CPU time, and a run is not.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bertsmith.base.files import write_text
from bertsmith.base.tables import aligned
from bertsmith.training.records.meters import read_metrics

STEPS = 3
# Global batches of both phases, and tokens of a micro-batch: so that a step has several, and a run takes minutes.
CASES = {
    "bert-mini": ("256", "64", "8192"),
    "bert-base-nvlamb": ("64", "16", "2048"),
}


def planned(name: str, ranks: int, flags: list[str], corpus: Path, folder: Path) -> dict[str, Any]:
    """The figures of a plan, and the seconds that it took."""
    path = folder / "plan.json"
    spent = os.times()
    command = ["plan", name, "--corpus", str(corpus), "--gpu", "cpu", "--gpus", str(ranks), "--json", str(path)]
    bertsmith([*command, *flags])
    made: dict[str, Any] = json.loads(path.read_text())
    return made | {"plan_seconds": os.times().elapsed - spent.elapsed}


def trained(name: str, ranks: int, flags: list[str], corpus: Path, folder: Path) -> dict[str, Any]:
    """The most memory of a run in bytes, and the median seconds of a step by phase."""
    out = folder / "run"
    cadence = ["--log-every", "1", "--evaluate-every", "1000", "--save-every", "1000", "--evaluate-instances", "16"]
    bertsmith(["pretrain", name, "--corpus", str(corpus), "--out", str(out), "--ranks", str(ranks), *cadence, *flags])
    lines = [each for each in read_metrics(out / "metrics.jsonl") if each["kind"] == "train"]
    found: dict[str, Any] = {"memory": max(each["memory_bytes"] for each in lines)}
    for phase in (1, 2):
        later = [each["seconds_per_step"] for each in lines if each["phase"] == phase and each["phase_step"] > 1]
        found[f"phase {phase}"] = statistics.median(later)
    return found


def bertsmith(arguments: list[str]) -> None:
    """Runs a verb; what it says is shown where it fails."""
    done = subprocess.run([sys.executable, "-m", "bertsmith", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"bertsmith {' '.join(arguments)}\n{done.stderr}")


def compared(name: str, ranks: int, corpus: Path) -> dict[str, Any]:
    """A row: what was planned, what was found, and the errors of the plan."""
    first, second, most = CASES[name]
    flags = ["--phase1.steps", str(STEPS), "--phase2.steps", str(STEPS)]
    flags += ["--phase1.global-batch", first, "--phase2.global-batch", second, "--micro-batch-tokens", most]
    with tempfile.TemporaryDirectory() as folder:
        plan = planned(name, ranks, flags, corpus, Path(folder))
        run = trained(name, ranks, flags, corpus, Path(folder))
    steps = {each["name"]: each["seconds_per_step"]["total"] for each in plan["stages"]}
    pairs = {"memory": (plan["memory_bytes"]["needed"], run["memory"])}
    pairs |= {name: (seconds, run[name]) for name, seconds in steps.items()}
    errors = {what: ours / found - 1 for what, (ours, found) in pairs.items()}
    row = {"run": name, "ranks": ranks, "planned": {what: ours for what, (ours, _) in pairs.items()}}
    took, precision = plan["plan_seconds"], plan["precision"]
    return row | {"found": run, "errors": errors, "plan_seconds": took, "precision": precision}


def table(rows: list[dict[str, Any]]) -> list[str]:
    """The rows as aligned text."""
    head = ["run", "ranks", "", "planned", "found", "error"]
    cells = [head]
    for row in rows:
        for what, error in row["errors"].items():
            unit, factor = ("GB", 1e-9) if what == "memory" else ("s a step", 1.0)
            planned, found = (f"{row[side][what] * factor:.2f}" for side in ("planned", "found"))
            cells.append([row["run"], str(row["ranks"]), f"{what}, {unit}", planned, found, f"{error:+.0%}"])
    return aligned(cells, "lrlr")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="a prepared corpus")
    parser.add_argument("--json", type=Path, help="where the rows go")
    parser.add_argument("--only", default="", help="runs whose name holds this")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    rows = []
    for name in CASES:
        if options.only in name:
            rows += [compared(name, ranks, options.corpus) for ranks in options.ranks]
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    if options.json:
        write_text(options.json, json.dumps({"load_at_the_end": load, "rows": rows}, indent=2) + "\n")
    print("\n".join(table(rows)))
    print(f"processes running at the end, a minute's average: {load}")


if __name__ == "__main__":
    main()
