"""How far runs of one recipe lie apart: `bert-tiny` with five seeds in fp32, and one of them in bf16.

    python benchmarks/seed_runs.py run --corpus corpus --runs runs --out benchmarks/results/seed-runs.json
    python benchmarks/seed_runs.py table benchmarks/results/seed-runs.json --png docs/runs/seeds.png

Every run is resumed where it was stopped, and none that the file has is run again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from runs_file import deviation, flags, identity, once

from bertsmith.base import files
from bertsmith.base.figures import new_figure, save_figure
from bertsmith.base.log import configure
from bertsmith.base.tables import aligned
from bertsmith.recipes.loader import load_recipe
from bertsmith.recipes.schema import Recipe
from bertsmith.training.pretrain import pretrain

SEEDS = (1, 2, 3, 4, 5)
FIELDS = {"phase1.steps": 1000, "phase2.steps": 100, "log_every": 10, "evaluate_instances": 1024}


def trained(recipe: Recipe, corpus: Path, folder: Path) -> dict[str, Any]:
    """The curve of a run, from where it was, and what its model predicts of held-out text."""
    run = pretrain(recipe, corpus, folder, resume=folder.is_dir())
    curve = [[each["step"], round(each["loss"], 5)] for each in run.metrics("train")]
    final = {str(each["sequence_length"]): each for each in run.metrics("final")}
    names = ("masked_loss", "masked_accuracy", "next_sentence_accuracy", "masked_bits_per_byte")
    held_out = {length: {name: each[name] for name in names} for length, each in final.items()}
    # Of all sessions, where a run was stopped and resumed.
    seconds = sum(each["steps"] * each["seconds_per_step"] for each in run.metrics("train"))
    found = {"score": held_out["512"]["masked_loss"], "held_out": held_out, "curve": curve}
    return {**found, "training_seconds": round(seconds, 1)}


def run(corpus: Path, runs: Path, out: Path) -> None:
    """All runs that the file does not have yet."""
    for seed, precision in (*((seed, "fp32") for seed in SEEDS), (SEEDS[0], "bf16")):
        fields = {**FIELDS, "seed": seed, "precision": precision, "device": "cpu"}
        recipe = load_recipe("bert-tiny", [f"--{name}={value}" for name, value in fields.items()])
        key = {"seed": seed, "precision": precision, **FIELDS, "recipe": identity(recipe)}
        key["corpus"] = files.sha256(corpus / "corpus.json")

        def measured(recipe: Recipe = recipe, name: str = f"{precision}-seed-{seed}") -> dict[str, Any]:
            return trained(recipe, corpus, runs / name)

        once(out, key, ("seed", "precision"), measured)


def table(path: Path, png: Path | None) -> None:
    """Prints what was found, and draws it."""
    rows = {(row["seed"], row["precision"]): row for row in files.read_json(path)}
    lines = [["", *(f"seed {seed}" for seed in SEEDS), "mean", "deviation", f"seed {SEEDS[0]}, bf16"]]
    for length in ("128", "512"):
        for name in ("masked_loss", "masked_accuracy", "next_sentence_accuracy"):
            found = [rows[seed, "fp32"]["held_out"][length][name] for seed in SEEDS]
            figures = (
                *found,
                float(np.mean(found)),
                deviation(found),
                rows[SEEDS[0], "bf16"]["held_out"][length][name],
            )
            lines.append([f"{name} at {length}", *(f"{each:.4f}" for each in figures)])
    if all("training_seconds" in row for row in rows.values()):  # files of earlier versions have none
        found = [rows[seed, "fp32"]["training_seconds"] for seed in SEEDS]
        figures = (*found, float(np.mean(found)), deviation(found), rows[SEEDS[0], "bf16"]["training_seconds"])
        lines.append(["training seconds", *(f"{each:.1f}" for each in figures)])
    print("\n".join(aligned(lines)))
    if png is not None:
        draw(rows, png)


def draw(rows: dict[tuple[int, str], Any], png: Path) -> None:
    """Both precisions of one seed, and all seeds."""
    figure = new_figure(9, 3.2)
    assert figure is not None, "pip install matplotlib"
    precisions, seeds = figure.subplots(1, 2, sharey=True)
    for place, chosen in (
        (precisions, [(SEEDS[0], "fp32"), (SEEDS[0], "bf16")]),
        (seeds, [(s, "fp32") for s in SEEDS]),
    ):
        for seed, precision in chosen:
            steps, losses = zip(*rows[seed, precision]["curve"], strict=True)
            label = precision if place is precisions else f"seed {seed}"
            place.plot(steps, losses, linewidth=0.7, label=label)
        place.set(xlabel="step")
        place.legend()
    precisions.set(title=f"seed {SEEDS[0]}", ylabel="loss")
    seeds.set(title="fp32")
    save_figure(figure, png)


def main() -> None:
    parser, _ = flags(__doc__, "corpus", "runs")
    given = parser.parse_args()
    if given.verb == "table":
        table(given.scores, given.png)
    else:
        configure(quiet=True)
        run(given.corpus, given.runs, given.out)


if __name__ == "__main__":
    main()
