"""Fine-tuned scores beside those of a plain loop around transformers' classes: same rows, settings and number of seeds.

    python benchmarks/finetune_peer.py run --data DATA --out scores.json [--tasks mrpc cola] [--seeds 1 2 3]
    python benchmarks/finetune_peer.py table scores.json

`peer_tasks.py` fixes rows, settings and seeds beforehand, `peer_loop.py` is the other side. Both are scored after the
last epoch, on dev. Every run of a seed is written to the JSON file when it ends, and one that is there is not run
again, so a killed run continues where it was. All runs of the file are in the table.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import sys
import time
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from peer_tasks import MODEL, TASKS, PeerTask, Rows, rows_of

from bertsmith.base import files
from bertsmith.base.tables import aligned

OURS, THEIRS = "ours", "transformers"
FEWEST_ERRORS = 3.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run")
    run.add_argument("--data", type=Path, default=Path(os.environ.get("BERTSMITH_DATA", "")))
    run.add_argument("--out", type=Path, required=True)
    run.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    run.add_argument("--sides", nargs="*", default=[OURS, THEIRS], choices=[OURS, THEIRS])
    run.add_argument("--seeds", nargs="*", type=int, help="as many as the table says, from 1")
    run.add_argument("--precision", default="auto", help="of ours; the other side's is fp32, as shipped")
    run.add_argument("--slice", type=int, help="at most so many rows of train and dev, and one epoch: to try it out")
    table = verbs.add_parser("table")
    table.add_argument("scores", type=Path)
    given = parser.parse_args()
    if given.verb == "table":
        print("\n".join(table_of(files.read_json(given.scores))))
        return
    rows = {name: rows_of(name, given.data, given.slice) for name in given.tasks}
    tasks = {name: TASKS[name] if given.slice is None else replace(TASKS[name], epochs=1) for name in given.tasks}
    # In turns, so that a run that is cut off has both sides of most tasks.
    for seed in given.seeds or range(1, 1 + max(task.seeds for task in tasks.values())):
        for name, task in tasks.items():
            if not given.seeds and seed > task.seeds:
                continue
            train, dev = rows[name]
            settings = asdict(task) | {"rows": [len(train), len(dev)], "sha256": checksum(train, dev)}
            for side in given.sides:
                key = {"task": name, "side": side, "seed": seed, "settings": settings, "precision": given.precision}
                _one(given.out, key, task, train, dev, given.data / MODEL)


def _one(out: Path, key: dict[str, Any], task: PeerTask, train: Rows, dev: Rows, model: Path) -> None:
    """A run of a seed on one side, unless the file has it."""
    rows = files.read_json(out) if out.is_file() else []
    same = [row for row in rows if all(row[name] == key[name] for name in ("task", "side", "seed"))]
    name = f"{key['task']} {key['side']} seed {key['seed']}"
    if same:
        if any(row["settings"] != key["settings"] or row["precision"] != key["precision"] for row in same):
            sys.exit(f"{out}: {name} was run with other settings or rows; write to another file")
        return
    start = time.perf_counter()
    metrics = _RUNS[key["side"]](task, train, dev, key["seed"], model, key["precision"])
    seconds = time.perf_counter() - start
    row = {**key, "score": metrics[task.metric], "metrics": metrics, "seconds": round(seconds, 1), **machine()}
    files.write_json(out, [*rows, row])
    print(f"{name}: {task.metric} {row['score']:.4f} in {seconds:.0f} s", flush=True)


def ours(
    task: PeerTask, train: Rows, dev: Rows, seed: int, model: Path, precision: str, **changes: Any
) -> dict[str, float]:
    """Every metric on the dev rows after the last epoch. changes: to the settings."""
    import bertsmith
    from bertsmith.tasks.settings import FinetuneSettings

    same = ("epochs", "batch", "learning_rate", "warmup", "weight_decay", "max_gradient_norm", "max_length", "metric")
    settings = FinetuneSettings(
        **{name: getattr(task, name) for name in same}, seed=seed, precision=precision, **changes
    )
    result = bertsmith.finetune(task.kind, model, train, dev, None, settings=settings)
    # Of questions figures are percent, as SQuAD's are.
    return {name: value / (100 if task.kind == "qa" else 1) for name, value in result.seeds[0].epochs[-1].dev.items()}


def _theirs(task: PeerTask, train: Rows, dev: Rows, seed: int, model: Path, precision: str) -> dict[str, float]:
    del precision
    import peer_loop

    return {name: float(value) for name, value in peer_loop.run(task, train, dev, seed, model).items()}


_RUNS = {OURS: ours, THEIRS: _theirs}


def checksum(train: Rows, dev: Rows) -> str:
    """Of all rows."""
    return hashlib.sha256(json.dumps([train, dev], sort_keys=True).encode()).hexdigest()[:16]


def machine() -> dict[str, Any]:
    """What a run was made with."""
    names = (line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name"))
    versions = {name: version(name) for name in ("bertsmith", "torch", "transformers", "tokenizers", "numpy")}
    return {"versions": versions, "cpu": next(names, "unknown"), "cores": os.cpu_count()}


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.is_file() else []


def table_of(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each task, in points of its metric: both means, their difference and its standard error."""
    lines = [["task", "metric", "seeds", "ours", "transformers", "difference", "standard error", "in errors"]]
    differences, squared = [], []
    for name in TASKS:
        sides = {
            side: np.array([100 * row["score"] for row in rows if (row["task"], row["side"]) == (name, side)])
            for side in (OURS, THEIRS)
        }
        if min(map(len, sides.values())) == 0:
            continue
        difference = float(sides[OURS].mean() - sides[THEIRS].mean())
        error = math.sqrt(sum(_variance_of_mean(each) for each in sides.values()))
        differences.append(difference)
        squared.append(error**2)
        seeds = "/".join(str(len(each)) for each in sides.values())
        means = [f"{each.mean():.2f} +- {_deviation(each):.2f}" for each in sides.values()]
        errors = f"{difference / error:+.1f}" if error > 0 else "-"
        lines.append([name, TASKS[name].metric, seeds, *means, f"{difference:+.2f}", f"{error:.2f}", errors])
        if error > 0 and difference < -FEWEST_ERRORS * error:
            lines[-1].append("worse: five new seeds on both sides")
    if not differences:
        return ["no task has both sides"]
    mean, error = float(np.mean(differences)), math.sqrt(sum(squared)) / len(squared)
    holds = mean > -0.5 or mean > -2 * error
    last = f"mean over {len(differences)} tasks: {mean:+.2f} points, standard error {error:.2f}"
    verdict = "above -0.5 points or within two of its standard errors" if holds else "worse than the other side"
    return [*aligned(lines, "llrrrrrrl"), f"{last}: {verdict}"]


def _deviation(scores: np.ndarray) -> float:
    return float(scores.std(ddof=1)) if len(scores) > 1 else math.nan


def _variance_of_mean(scores: np.ndarray) -> float:
    return _deviation(scores) ** 2 / len(scores)


if __name__ == "__main__":
    main()
