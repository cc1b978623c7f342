"""What each option for few rows is worth by itself: fine-tuning with it beside the default, from the same seeds.

    python benchmarks/finetune_options.py run --data DATA --out options.json [--tasks mrpc cola] [--options NAME ...]
    python benchmarks/finetune_options.py table options.json

Rows and settings are those of `peer_tasks.py`, scored after the last epoch, on dev. Every run of a seed is written to
the JSON file when it ends, and one that is there is not run again, so a killed run continues where it was. All runs of
the file are in the table.
"""

from __future__ import annotations

import math
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from finetune_peer import FP32, checksum, ours
from peer_tasks import MODEL, TASKS, PeerTask, Rows, rows_of
from runs_file import deviation, flags, once

from bertsmith.base import files
from bertsmith.base.tables import aligned

DEFAULT = "default"
OPTIONS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "layer-decay-0.9": {"layer_decay": 0.9},
    "reinitialised-layers-1": {"reinitialised_layers": 1},
    "no-bias-correction": {"bias_correction": False},
    "label-smoothing-0.1": {"label_smoothing": 0.1},
    "frozen-layers-2": {"frozen_layers": 2},
}
"""Each a change of the settings; fixed before any run."""
SEEDS = 5


def main() -> None:
    parser, run = flags(__doc__)
    run.add_argument("--tasks", nargs="*", default=["mrpc", "cola"], choices=list(TASKS))
    run.add_argument("--options", nargs="*", default=list(OPTIONS), choices=list(OPTIONS))
    run.add_argument("--precision", default=FP32, choices=[FP32, "bf16"])
    run.add_argument("--slice", type=int, help="at most so many rows of train and dev, and one epoch: to try it out")
    given = parser.parse_args()
    if given.verb == "table":
        print("\n".join(table_of(files.read_json(given.scores))))
        return
    rows = {name: rows_of(name, given.data, given.slice) for name in given.tasks}
    # In turns, so that a run that is cut off has all options of some seeds.
    for seed in range(1, SEEDS + 1):
        for name, (train, dev) in rows.items():
            task = TASKS[name] if given.slice is None else replace(TASKS[name], epochs=1)
            settings = asdict(task) | {"rows": [len(train), len(dev)], "sha256": checksum(train, dev)}
            for option in given.options:
                same = {"task": name, "option": option, "seed": seed}
                key = {**same, "settings": settings, "changes": OPTIONS[option], "precision": given.precision}
                work = partial(_run, task, (train, dev), key, given.data / MODEL)
                once(given.out, key, ("task", "option", "seed"), work)


def _run(task: PeerTask, rows: tuple[Rows, Rows], key: dict[str, Any], model: Path) -> dict[str, Any]:
    metrics = ours(task, *rows, key["seed"], model, key["precision"], **key["changes"])
    return {"score": metrics[task.metric], "metrics": metrics}


def table_of(rows: list[dict[str, Any]]) -> list[str]:
    """A line for each task and option, in points of its metric: its mean, and the mean of its differences from the
    default with the same seed, with the standard error of that."""
    lines = [["task", "metric", "option", "seeds", "score", "difference", "standard error", "in errors"]]
    found = {(row["task"], row["option"], row["seed"]): 100 * row["score"] for row in rows}
    order = list(OPTIONS)
    # Several processes may have written the rows.
    for task, option in sorted({key[:2] for key in found}, key=lambda each: (each[0], order.index(each[1]))):
        scores = {seed: score for (*of, seed), score in found.items() if of == [task, option]}
        mean = f"{np.mean(list(scores.values())):.2f} +- {deviation(list(scores.values())):.2f}"
        lines.append([task, TASKS[task].metric, option, str(len(scores)), mean, *_difference(found, task, option)])
    return aligned(lines, "lllrrrrr")


def _difference(found: dict[tuple[str, str, int], float], task: str, option: str) -> list[str]:
    """Of the seeds that both have: same rows, order and, where it is drawn alike, head and dropout."""
    if option == DEFAULT:
        return ["-"] * 3
    pairs = [
        score - found[task, DEFAULT, seed]
        for (of, what, seed), score in found.items()
        if (of, what) == (task, option) and (task, DEFAULT, seed) in found
    ]
    if len(pairs) < 2:
        return ["-"] * 3
    mean, error = float(np.mean(pairs)), deviation(pairs) / math.sqrt(len(pairs))
    return [f"{mean:+.2f}", f"{error:.2f}", f"{mean / error:+.1f}" if error else "-"]


if __name__ == "__main__":
    main()
