"""What a small budget learns best with: rungs of 4 million token slots, then the chosen recipe for ten times as many.

    python benchmarks/ladder.py run --corpus corpus --blimp blimp --runs runs --out ladder.json --rungs base NVLAMB
    python benchmarks/ladder.py run --corpus corpus --blimp blimp --runs runs --out ladder.json --chosen base
    python benchmarks/ladder.py table ladder.json --png learning.png

The model has 8 layers of 256, 8,192 pieces and the objective mlm; docs/runs/README.md has the commands that make its
corpus of 25 MB of Wikipedia.

A rung is compared by its held-out loss, then by BLiMP on 200 pairs of each file. Each changes one thing of "base",
whose starting values are those of short runs (docs/decisions/006-short-runs.md) and whose rate is about what the preset
`budget` has for this width and batch. The rungs take hours, and may be run in pieces and by several processes into one
file: each is resumed where it was stopped, and none that the file has is run again.

The fields of rungs that are chosen together are set together, so no two may set the same one.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from runs_file import flags, identity, once

from bertsmith.base import files
from bertsmith.base.device import choose_device
from bertsmith.base.errors import BertsmithError
from bertsmith.base.figures import new_figure, save_figure
from bertsmith.base.log import Progress, as_details, configure
from bertsmith.base.stopping import StoppedAfterSaving, stop_on_signals
from bertsmith.base.tables import aligned
from bertsmith.inference.minimal_pairs import by_phenomenon, evaluate_minimal_pairs
from bertsmith.inference.predictor import load_predictor
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
    "model.fresh_positions": "neighbours",
    "phase1.sequence_length": 128,
    "phase1.steps": 1000,
    "phase1.global_batch": 32,
    "phase1.learning_rate": 0.0003,
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
    "BERT start": {"model.fresh_positions": "normal"},
    "rate 0.001": {"phase1.learning_rate": 0.001},
    "30% to 15%": {"masking.rate": 0.3, "masking.final_rate": 0.15},
    "NVLAMB": {
        "optimizer.name": "lamb",
        "optimizer.beta2": 0.999,
        "optimizer.trust_ratio": "decayed",
        "phase1.learning_rate": 0.004,
    },
    "batch 16": {"phase1.global_batch": 16, "phase1.steps": 2000},
}
CHOSEN = "chosen"
# Ten times the steps of its rungs, and not ten times as many evaluations.
TIMES = 10
EVALUATE_EVERY = 1000


def fields_of(rungs: Sequence[str]) -> dict[str, Any]:
    """The base with the fields of these rungs. Ends the script where two set the same one."""
    fields = [field for rung in rungs for field in RUNGS[rung]]
    if len(fields) > len(set(fields)):
        sys.exit(f"--chosen: {', '.join(rungs)} set the same field twice; leave one out")
    return BASE | {field: value for rung in rungs for field, value in RUNGS[rung].items()}


@contextmanager
def timed(path: Path, kept: dict[str, Any]) -> Iterator[None]:
    """Adds the seconds of the block to those of `kept`, and writes it, however the block ends."""
    start = time.perf_counter()
    try:
        yield
    finally:
        files.write_json(path, kept | {"seconds": kept["seconds"] + time.perf_counter() - start})


def trained(recipe: Recipe, corpus: Path, folder: Path, blimp: Path, pairs: int) -> dict[str, Any]:
    """A run to its end, from where it was, and what its model knows. seconds: of all calls that it took."""
    path = folder.with_name(f"{folder.name}-seconds.json")
    with timed(path, files.read_json(path) if path.is_file() else {"seconds": 0.0}):
        run = pretrain(recipe, corpus, folder, resume=folder.is_dir())
    (final,) = run.metrics("final")
    of_files, seconds = scored(run.model, blimp, pairs, folder.with_name(f"{folder.name}-blimp-{pairs}.json"))
    slots = recipe.phase1.steps * recipe.phase1.global_batch * recipe.phase1.sequence_length
    return {
        "seconds": files.read_json(path)["seconds"] + seconds,
        "score": final["masked_loss"],
        "bits_per_byte": final["masked_bits_per_byte"],
        "accuracy": final["masked_accuracy"],
        "blimp": by_phenomenon(of_files),
        "blimp_files": of_files,
        "slots": slots,
        "curve": [[each["step"], round(each["masked_loss"], 4)] for each in run.metrics("evaluation")],
    }


def scored(model: Path, blimp: Path, pairs: int, path: Path) -> tuple[dict[str, float], float]:
    """What a model knows of so many pairs of each file of BLiMP, and the seconds of all calls that it took. path: where
    each file's score is kept when it is made. Raises StoppedAfterSaving behind the file in which a signal came."""
    texts = sorted(blimp.glob("*.jsonl"))
    key = {"model": files.sha256(model / "model.safetensors"), "blimp": identity_of(texts)}
    kept = files.read_json(path) if path.is_file() else {}
    if kept.get("key") != key:
        kept = {"key": key, "seconds": 0.0, "files": {}}
    with stop_on_signals("BLiMP stops behind the file under way") as stop:
        predictor = load_predictor(model)
        with Progress("BLiMP", len(texts), "file") as progress:
            progress.skip(len(kept["files"]))
            for text in texts:
                if text.stem in kept["files"]:
                    continue
                with timed(path, kept), tempfile.TemporaryDirectory() as few, text.open(encoding="utf-8") as lines:
                    Path(few, text.name).write_text("".join(itertools.islice(lines, pairs)), encoding="utf-8")
                    with as_details():
                        kept["files"] |= evaluate_minimal_pairs(predictor, Path(few)).files
                kept = files.read_json(path)
                progress.advance(1, text.stem)
                if stop.requested:
                    raise StoppedAfterSaving(f"{len(kept['files'])} of {len(texts)} files of BLiMP are scored")
    return kept["files"], kept["seconds"]


def identity_of(texts: Sequence[Path]) -> str:
    """A hash of these files."""
    return hashlib.sha256("".join(map(files.sha256, texts)).encode()).hexdigest()


def checksum_of_shards(corpus: Path) -> str:
    """Of a corpus's shards alone: its account also has when its sources were written, and a new copy changes that."""
    splits = files.read_json(corpus / "corpus.json")["splits"]
    shards = {name: [each["sha256"] for each in split["shards"]] for name, split in splits.items()}
    return hashlib.sha256(json.dumps(shards, sort_keys=True).encode()).hexdigest()


def run(given: argparse.Namespace) -> None:
    """The rungs, or the chosen recipe for ten times as long."""
    changes = {rung: fields_of([rung]) for rung in given.rungs or RUNGS}
    if given.chosen:
        fields = fields_of(given.chosen)
        longer = {"phase1.steps": TIMES * fields["phase1.steps"], "evaluate_every": EVALUATE_EVERY}
        changes = {CHOSEN: fields | longer}
    of_pairs = {"pairs": given.pairs, "pairs_sha256": identity_of(sorted(given.blimp.glob("*.jsonl")))}
    for name, fields in changes.items():
        folder = given.runs / name.replace(" ", "-").replace("%", "")
        recipe = load_recipe("bert-base-mlm", [f"--{field}={value}" for field, value in fields.items()])
        key = {"rung": name, "fields": fields, "recipe": identity(recipe), **of_pairs}
        key |= {"precision": choose_device(recipe.device, recipe.precision).precision}
        key |= {"corpus": checksum_of_shards(given.corpus)}

        def rung(recipe: Recipe = recipe, folder: Path = folder) -> dict[str, Any]:
            return trained(recipe, given.corpus, folder, given.blimp, given.pairs)

        once(given.out, key, ("rung", "pairs"), rung)


def table(path: Path, png: Path | None) -> None:
    """Prints what was found, and draws it."""
    rows = files.read_json(path)
    lines = [["rung", "slots", "held-out loss", "bits per byte", "accuracy", "BLiMP", "pairs a file"]]
    for row in rows:
        figures = [f"{row['score']:.3f}", f"{row['bits_per_byte']:.3f}", f"{row['accuracy']:.1%}"]
        blimp = f"{row['blimp']['mean']:.1%}", f"{row['pairs']:,}"
        lines.append([row["rung"], f"{row['slots'] / 1e6:.1f} M", *figures, *blimp])
    print("\n".join(aligned(lines)), end="\n\n")
    last = rows[-1]["blimp"]
    phenomena = [*sorted(last.keys() - {"mean"}, key=lambda each: (last[each], each)), "mean"]
    lines = [["BLiMP", *(row["rung"] for row in rows)]]
    lines += [[each, *(f"{row['blimp'][each]:.1%}" for row in rows)] for each in phenomena]
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
        curves.minorticks_off()
        curves.set_xticks([0.5, 1, 2, 4, 10, 20, 40], list(map(str, (0.5, 1, 2, 4, 10, 20, 40))))
        curves.set_xlim(0.45, 1.1 * max(row["slots"] for row in rows) / 1e6)
        curves.legend()
        save_figure(figure, png)


def main() -> None:
    parser, runs = flags(__doc__, "corpus", "blimp", "runs")
    which = runs.add_mutually_exclusive_group()
    which.add_argument("--rungs", nargs="+", choices=RUNGS, metavar="NAME", help=f"only these: {', '.join(RUNGS)}")
    which.add_argument("--chosen", nargs="+", choices=RUNGS, metavar="NAME", help="these together, ten times as long")
    runs.add_argument("--pairs", type=int, default=PAIRS, help="of each file of BLiMP; all are 1,000")
    given = parser.parse_args()
    if given.verb == "table":
        return table(given.scores, given.png)
    configure()
    try:
        run(given)
    except StoppedAfterSaving as stopped:
        print(f"stopped, and what was done is kept ({stopped}): the same command continues", file=sys.stderr)
    except BertsmithError as error:
        print(error, file=sys.stderr)
        sys.exit(error.status)


if __name__ == "__main__":
    main()
