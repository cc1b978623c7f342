"""A student of four layers on SST-2: with and without a teacher, with and without augmented rows, all at equal steps.

    python benchmarks/distill_sst2.py run --data DATA --work FOLDER --out scores.json [--seeds 1 2 3]
    python benchmarks/distill_sst2.py table scores.json

Fixed beforehand: 8,000 training rows (drawn with seed 0), the whole dev set, the score after the last step. The teacher
is all-MiniLM-L6-v2 fine-tuned on these rows for three epochs. The student has layers 2, 3, 5 and 6 of the teacher and
its head, also where it learns from labels alone; in one more cell those of all-MiniLM-L6-v2 itself with a fresh head.
Words are proposed by a small model that is pre-trained here, on 20 files of Wikipedia with the same vocabulary. FOLDER
holds the teacher, the corpus and that model; what is there is not made again. Every run of a student is written to the
JSON file when it ends, and one that is there is not run again, so a killed run continues where it was.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from peer_tasks import READERS, drawn
from runs_file import deviation, flags, once

import bertsmith
from bertsmith.base import files
from bertsmith.base.tables import aligned
from bertsmith.tasks.settings import DistillSettings, FinetuneSettings

ROWS, SEEDS, AUGMENT = 8000, (1, 2, 3), 1
# Teacher and students alike, and said: "auto" is another one on another machine.
PRECISION = "fp32"
TEACHER = FinetuneSettings(epochs=3, keep_seed="last", precision=PRECISION, report=False)
STUDENT = DistillSettings(
    epochs=1000,
    max_steps=750,
    student_layers=4,
    keep_seed="last",
    precision=PRECISION,
    log_every=25,
    report=False,
    temperature=False,
)
ALONE = {"label_weight": 1.0, "logits_weight": 0.0, "hidden_weight": 0.0}
WIKI, WIKI_FILES = "wiki/enwiki-2015/AA", 20
PRETRAINING = {
    "phase1.steps": 1500,
    "phase1.global_batch": 32,
    "phase1.sequence_length": 64,
    "phase2.steps": 0,
    "pairs.random_next": 0,
}


@dataclass(frozen=True)
class Cell:
    """taught: by the teacher. made: with augmented rows. untouched: starts from the model that the teacher
    was made of."""

    taught: bool
    made: bool
    untouched: bool = False


CELLS = {
    "alone": Cell(False, False),
    "alone, augmented rows": Cell(False, True),
    "taught": Cell(True, False),
    "taught, augmented rows": Cell(True, True),
    "alone, from MiniLM itself": Cell(False, False, untouched=True),
}


def main() -> None:
    parser, run = flags(__doc__)
    run.add_argument("--work", type=Path, required=True)
    run.add_argument("--seeds", nargs="*", type=int, default=list(SEEDS))
    run.add_argument("--cells", nargs="*", default=list(CELLS), choices=list(CELLS))
    given = parser.parse_args()
    if given.verb == "table":
        print("\n".join(table_of(files.read_json(given.scores))))
        return
    every, dev = READERS["sst2"](given.data)
    train = drawn(every, ROWS)
    model = given.data / "weights/all-MiniLM-L6-v2"
    teacher_of(given.out, given.work, model, train, dev)
    made = any(CELLS[cell].made for cell in given.cells)
    words = words_of(given.work, given.data, model) if made else given.work / "mlm"
    for seed in given.seeds:  # all cells of a seed, so that a run that is cut off has whole seeds
        for cell in given.cells:
            _one(given.out, cell, seed, (train, dev), model, given.work / "teacher", words)


def teacher_of(out: Path, work: Path, model: Path, train: Any, dev: Any) -> None:
    """Trains the teacher if it is not there, and writes its score."""
    if not (work / "teacher" / "model").is_dir():
        bertsmith.finetune("classify", model, train, dev, work / "teacher", settings=TEACHER, resume=True)
    values = files.read_json(work / "teacher" / "finetune.json")
    score = {"score": values["last_epoch_scores"][0], "seconds": values["seconds"]}
    once(out, {"cell": "teacher", "seed": 0, "settings": asdict(TEACHER)}, ("cell", "seed"), lambda: score)


def words_of(work: Path, data: Path, model: Path) -> Path:
    """The folder of the model that proposes words, which is trained if it is not there."""
    from bertsmith.corpus.options import PrepareOptions
    from bertsmith.recipes.loader import load_recipe

    if not (work / "corpus" / "corpus.json").is_file():
        sources = sorted((data / WIKI).iterdir())[:WIKI_FILES]
        bertsmith.prepare(sources, work / "corpus", tokenizer=model, options=PrepareOptions(workers=1))
    if not (work / "mlm" / "model").is_dir():
        recipe = load_recipe("quickstart", [f"--{name}={value}" for name, value in PRETRAINING.items()])
        bertsmith.pretrain(recipe, work / "corpus", work / "mlm", resume=True)
    return work / "mlm"


def _one(out: Path, cell: str, seed: int, rows: Any, model: Path, teacher: Path, words: Path) -> None:
    """A student, unless the file has it."""
    of = CELLS[cell]
    settings = replace(STUDENT, seed=seed, **({} if of.taught else ALONE))
    if of.made:
        settings = replace(settings, augment=AUGMENT, augment_model=str(words), label_augmented=not of.taught)
    told = {**asdict(settings), "augment_model": "mlm" if of.made else None}
    start = model if of.untouched else teacher / "model"

    def run() -> dict[str, Any]:
        train, dev = rows
        result = bertsmith.distill(teacher, start, None, task="classify", train=train, dev=dev, settings=settings)
        return {"score": result.last_scores[0], "rows": result.rows}

    once(out, {"cell": cell, "seed": seed, "settings": told}, ("cell", "seed"), run)


def table_of(rows: list[dict[str, Any]]) -> list[str]:
    """A line for the teacher and each cell: accuracy on dev in points, and the difference from the teacher."""
    teacher = next((100 * row["score"] for row in rows if row["cell"] == "teacher"), float("nan"))
    lines = [["student", "seeds", "accuracy", "deviation", "less than the teacher"]]
    lines.append(["teacher (6 layers)", "1", f"{teacher:.2f}", "", ""])
    for cell in CELLS:
        scores = np.array([100 * row["score"] for row in rows if row["cell"] == cell])
        if len(scores):
            spread = f"{deviation(scores):.2f}" if len(scores) > 1 else ""
            difference = f"{teacher - scores.mean():+.2f}"
            lines.append([cell, str(len(scores)), f"{scores.mean():.2f}", spread, difference])
    return aligned(lines, "lrrrr")


if __name__ == "__main__":
    main()
