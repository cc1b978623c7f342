"""What a small budget learns best with: rungs of 4 million token slots, then the chosen recipe for ten times as many.

    python benchmarks/ladder.py run --corpus corpus --blimp blimp --runs runs --out benchmarks/results/ladder.json
    python benchmarks/ladder.py table benchmarks/results/ladder.json --png docs/runs/learning.png

The model has 8 layers of 256, 8,192 pieces and the objective mlm; docs/runs/README.md has the commands that make its
corpus of 25 MB of Wikipedia.

A rung is compared with the first by its held-out loss, then by BLiMP on 200 pairs of each file. Every run is resumed
where it was stopped, and none that the file has is run again.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sys
import tempfile
from pathlib import Path
from typing import Any

from runs_file import flags, identity, once

from bertsmith.base import files
from bertsmith.base.figures import new_figure, save_figure
from bertsmith.base.tables import aligned
from bertsmith.inference.minimal_pairs import evaluate_minimal_pairs
from bertsmith.recipes.loader import load_recipe
from bertsmith.recipes.schema import Recipe
from bertsmith.training.pretrain import pretrain

PAIRS = 200
BASE: dict[str, Any] = {
    "objective": "mlm",
    "model.layers": 8,
    "model.hidden": 256,
    "model.heads": 8,
    "model.intermediate": 2048,
    "model.max_positions": 128,
    "model.hidden_dropout": 0.0,
    "model.attention_dropout": 0.0,
    "phase1.sequence_length": 128,
    "phase1.steps": 1000,
    "phase1.global_batch": 32,
    "phase1.learning_rate": 0.001,
    "phase1.warmup": 0.06,
    "phase1.schedule": "linear",
    "phase2.steps": 0,
    "masking.rate": 0.15,
    "optimizer.name": "adamw",
    "optimizer.beta2": 0.98,
    "micro_batch_tokens": 4096,
    "log_every": 50,
    "evaluate_every": 250,
    "evaluate_instances": 1000,
    "save_every": 100,
}
RUNGS: dict[str, dict[str, Any]] = {
    "base": {},
    "neighbours": {"model.fresh_positions": "neighbours"},
    "30% to 15%": {"masking.rate": 0.3, "masking.final_rate": 0.15},
    "NVLAMB": {
        "optimizer.name": "lamb",
        "optimizer.beta2": 0.999,
        "optimizer.trust_ratio": "decayed",
        "phase1.learning_rate": 0.004,
    },
    "batch 16": {"phase1.global_batch": 16, "phase1.steps": 2000},
    "twice the rate": {"phase1.learning_rate": 0.002},
}
CHOSEN = "chosen"
TIMES = 10


def trained(recipe: Recipe, corpus: Path, folder: Path, blimp: Path) -> dict[str, Any]:
    """A run to its end, from where it was, and what its model knows."""
    run = pretrain(recipe, corpus, folder, resume=folder.is_dir())
    (final,) = run.metrics("final")
    with tempfile.TemporaryDirectory() as few:
        for path in sorted(blimp.glob("*.jsonl")):
            with path.open(encoding="utf-8") as lines:
                Path(few, path.name).write_text("".join(itertools.islice(lines, PAIRS)), encoding="utf-8")
        found = evaluate_minimal_pairs(run.model, Path(few))
    slots = recipe.phase1.steps * recipe.phase1.global_batch * recipe.phase1.sequence_length
    return {
        "score": final["masked_loss"],
        "bits_per_byte": final["masked_bits_per_byte"],
        "accuracy": final["masked_accuracy"],
        "blimp": found.figures,
        "slots": slots,
        "curve": [[each["step"], round(each["masked_loss"], 4)] for each in run.metrics("evaluation")],
    }


def run(given: argparse.Namespace) -> None:
    """The rungs, or the chosen recipe for ten times as long."""
    named = [name for rung in given.chosen or () for name in RUNGS[rung]]
    if len(named) > len(set(named)):
        sys.exit(f"--chosen: these rungs set the same field twice ({', '.join(named)}); leave one out")
    chosen = {name: value for rung in given.chosen or () for name, value in RUNGS[rung].items()}
    changes = {CHOSEN: chosen | {"phase1.steps": TIMES * (BASE | chosen)["phase1.steps"]}} if given.chosen else RUNGS
    pairs = hashlib.sha256("".join(map(files.sha256, sorted(given.blimp.glob("*.jsonl")))).encode()).hexdigest()
    for name, each in changes.items():
        fields = BASE | each
        folder = given.runs / name.replace(" ", "-").replace("%", "")
        recipe = load_recipe("bert-base-mlm", [f"--{field}={value}" for field, value in fields.items()])
        key = {"rung": name, "fields": fields, "recipe": identity(recipe), "pairs": PAIRS, "pairs_sha256": pairs}
        key["corpus"] = files.sha256(given.corpus / "corpus.json")

        def rung(recipe: Recipe = recipe, folder: Path = folder) -> dict[str, Any]:
            return trained(recipe, given.corpus, folder, given.blimp)

        once(given.out, key, ("rung",), rung)


def table(path: Path, png: Path | None) -> None:
    """Prints what was found, and draws it."""
    rows = files.read_json(path)
    lines = [["rung", "slots", "held-out loss", "bits per byte", "accuracy", "BLiMP"]]
    for row in rows:
        figures = [f"{row['score']:.3f}", f"{row['bits_per_byte']:.3f}", f"{row['accuracy']:.1%}"]
        lines.append([row["rung"], f"{row['slots'] / 1e6:.1f} M", *figures, f"{row['blimp']['mean']:.1%}"])
    print("\n".join(aligned(lines)))
    if png is not None:
        figure = new_figure(9, 3.6)
        assert figure is not None, "pip install matplotlib"
        curves = figure.subplots()
        for row in rows:
            batch, length = row["fields"]["phase1.global_batch"], row["fields"]["phase1.sequence_length"]
            slots, losses = zip(*((step * batch * length / 1e6, loss) for step, loss in row["curve"]), strict=True)
            curves.plot(slots, losses, marker=".", linewidth=0.9, label=row["rung"])
        curves.set(xlabel="million token slots", ylabel="held-out loss", xscale="log")
        curves.legend()
        save_figure(figure, png)


def main() -> None:
    parser, runs = flags(__doc__, "corpus", "blimp", "runs")
    runs.add_argument("--chosen", nargs="+", choices=RUNGS, help="run these rungs together, for ten times as long")
    given = parser.parse_args()
    table(given.scores, given.png) if given.verb == "table" else run(given)


if __name__ == "__main__":
    main()
