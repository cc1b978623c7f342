"""Fine-tuned scores beside those of a plain loop around transformers' classes: same rows, settings and number of seeds.

    python benchmarks/finetune_peer.py run --data DATA --out scores.json [--tasks mrpc cola] [--seeds 1 2 3]
    python benchmarks/finetune_peer.py table scores.json

`peer_tasks.py` fixes rows, settings and seeds beforehand, `peer_loop.py` is the other side. Both are scored after the
last epoch, on dev. `--sides same-draws` is Bertsmith from the order of rows and the head that the other side draws of a
seed: what is left of a difference then is of the program or of dropout. Every run of a seed is written to the JSON file
when it ends, and one that is there is not run again, so a killed run continues where it was. All runs of the file are
in the table.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from peer_tasks import MODEL, TASKS, PeerTask, Rows, rows_of
from runs_file import deviation, flags, once

from bertsmith.base import files
from bertsmith.base.tables import aligned

OURS, THEIRS, SAME = "ours", "transformers", "same-draws"
FP32 = "fp32"
FEWEST_ERRORS = 3.0


def main() -> None:
    parser, run = flags(__doc__)
    run.add_argument("--tasks", nargs="*", default=list(TASKS), choices=list(TASKS))
    run.add_argument("--sides", nargs="*", default=[OURS, THEIRS], choices=list(_RUNS))
    run.add_argument("--seeds", nargs="*", type=int, help="as many as the table says, from 1")
    run.add_argument("--precision", default=FP32, choices=[FP32, "bf16"], help="of ours; the other side's is fp32")
    run.add_argument("--slice", type=int, help="at most so many rows of train and dev, and one epoch: to try it out")
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
            settings = asdict(task) | {"rows": list(map(len, rows[name])), "sha256": checksum(*rows[name])}
            for side in given.sides:
                precision = FP32 if side == THEIRS else given.precision
                key = {"task": name, "side": side, "seed": seed, "settings": settings, "precision": precision}
                work = partial(_run, side, task, rows[name], seed, given.data / MODEL, precision)
                once(given.out, key, ("task", "side", "seed", "precision"), work)


def _run(side: str, task: PeerTask, rows: tuple[Rows, Rows], seed: int, model: Path, precision: str) -> dict[str, Any]:
    metrics = _RUNS[side](task, *rows, seed, model, precision)
    return {"score": metrics[task.metric], "metrics": metrics}


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


def _same_draws(task: PeerTask, train: Rows, dev: Rows, seed: int, model: Path, precision: str) -> dict[str, float]:
    """As `ours`, with the orders and the head of the other side."""
    import peer_loop

    from bertsmith.tasks.objective import Order
    from bertsmith.weights import huggingface

    side, other = peer_loop.started(task, train, dev, seed, model)
    *_, weight, bias = other.parameters()
    orders = [np.array(each) for each in peer_loop.orders(len(side.train), task.epochs, seed)]

    def head(module: Any, *_: Any) -> None:
        for fresh, drawn in zip(module.parameters(), (weight, bias), strict=True):
            fresh.data.copy_(drawn.data.view_as(fresh))

    def units(order: Order, epoch: int) -> np.ndarray:
        if len(order.examples.targets) != len(side.train):
            sys.exit(f"{len(order.examples.targets)} units of ours, {len(side.train)} of the other side")
        return orders[epoch - 1]

    with patch.object(huggingface, "initialise", head), patch.object(Order, "units", units):
        return ours(task, train, dev, seed, model, precision)


_RUNS = {OURS: ours, THEIRS: _theirs, SAME: _same_draws}


def checksum(train: Rows, dev: Rows) -> str:
    """Of all rows."""
    return hashlib.sha256(json.dumps([train, dev], sort_keys=True).encode()).hexdigest()[:16]


def table_of(rows: list[dict[str, Any]]) -> list[str]:
    """For each precision of ours a line a task, in points of its metric: both means, their difference and its standard
    error; then the mean over the tasks; seeds beyond those fixed beforehand; and seeds with the same draws."""
    precisions = sorted({row["precision"] for row in rows if row["side"] != THEIRS}, reverse=True)
    tables = (_table_of, _further_table_of, _same_table_of)
    lines = [line for each in precisions for line in ["", *(line for made in tables for line in made(rows, each))]]
    return lines[1:] if any(lines) else ["no task has both sides"]


def _same_table_of(rows: list[dict[str, Any]], precision: str) -> list[str]:
    """A line a task: the mean difference of the seeds that both sides have from the same order and head, and the mean
    of ours from its own ones where the same seeds were run."""
    head = ["task", "metric", "seeds", f"same draws, {precision}", "transformers", "difference", "standard error"]
    lines = [[*head, "own draws"]]
    for name in TASKS:
        same, theirs, own = (
            {row["seed"]: 100 * row["score"] for row in rows if (row["task"], row["side"], row["precision"]) == each}
            for each in ((name, SAME, precision), (name, THEIRS, FP32), (name, OURS, precision))
        )
        seeds = sorted(same.keys() & theirs.keys())
        if seeds:
            differences = np.array([same[seed] - theirs[seed] for seed in seeds])
            means = (np.mean([side[seed] for seed in seeds]) for side in (same, theirs))
            figures = (*means, differences.mean(), math.sqrt(_variance_of_mean(differences)))
            ours = f"{np.mean([own[seed] for seed in seeds]):.2f}" if own.keys() >= set(seeds) else "-"
            lines.append([name, TASKS[name].metric, str(len(seeds)), *(f"{each:.2f}" for each in figures), ours])
    return ["", *aligned(lines, "llrrrrrr")] if len(lines) > 1 else []


def _lines_of(
    rows: list[dict[str, Any]], precision: str, seeds: str = "seeds"
) -> tuple[list[list[str]], list[float], list[float]]:
    """The cells of a line a task, with the head; the differences, and their errors. seeds: the name of that column."""
    own = f"ours in {precision}"
    lines = [["task", "metric", seeds, own, "transformers", "difference", "standard error", "in errors"]]
    differences, errors = [], []
    for name in TASKS:
        sides = [
            np.array([100 * row["score"] for row in rows if (row["task"], row["side"], row["precision"]) == each])
            for each in ((name, OURS, precision), (name, THEIRS, FP32))
        ]
        if min(map(len, sides)) == 0:
            continue
        difference = float(sides[0].mean() - sides[1].mean())
        error = math.sqrt(sum(map(_variance_of_mean, sides)))
        differences.append(difference)
        errors.append(error)
        counts = "/".join(str(len(each)) for each in sides)
        means = [f"{each.mean():.2f} +- {deviation(each):.2f}" for each in sides]
        in_errors = f"{difference / error:+.1f}" if error > 0 else "-"
        lines.append([name, TASKS[name].metric, counts, *means, f"{difference:+.2f}", f"{error:.2f}", in_errors])
        if error > 0 and difference < -FEWEST_ERRORS * error:
            lines[-1].append("worse: five new seeds on both sides")
    return lines, differences, errors


def _further_table_of(rows: list[dict[str, Any]], precision: str) -> list[str]:
    """The lines of seeds beyond those that were fixed beforehand, by themselves."""
    further = [row for row in rows if row["seed"] > TASKS[row["task"]].seeds]
    lines, differences, _ = _lines_of(further, precision, "further seeds")
    return ["", *aligned(lines, "llrrrrrrl")] if differences else []


def _table_of(rows: list[dict[str, Any]], precision: str) -> list[str]:
    lines, differences, errors = _lines_of(rows, precision)
    if not differences:
        return []
    found = [*aligned(lines, "llrrrrrrl"), _mean_of(differences, errors)]
    if 0 in errors:
        # Where no run of either side differs from another, the task compares nothing.
        told = [each for each in zip(differences, errors, strict=True) if each[1] != 0]
        found += [f"without tasks whose runs are all alike, {_mean_of(*zip(*told, strict=True))}"] if told else []
    return found


def _mean_of(differences: Sequence[float], errors: Sequence[float]) -> str:
    mean, error = float(np.mean(differences)), math.sqrt(sum(each**2 for each in errors)) / len(errors)
    last = f"mean over {len(differences)} tasks: {mean:+.2f} points, standard error {error:.2f}"
    if math.isnan(error):
        verdict = "a task with one seed of a side has no standard error, so this says nothing yet"
    elif mean > -0.5 or mean > -2 * error:
        verdict = "above -0.5 points or within two of its standard errors"
    else:
        verdict = "worse than the other side"
    return f"{last}: {verdict}"


def _variance_of_mean(scores: np.ndarray) -> float:
    return deviation(scores) ** 2 / len(scores)


if __name__ == "__main__":
    main()
