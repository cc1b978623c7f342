"""What `finetune_peer.py` compares: the tasks, their rows and their hyper-parameters, fixed before any run.

Both sides are given the same rows as Python values, and read the same settings from `TASKS`. The rows are read here by
a few lines of their own, not by Bertsmith's readers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Rows = list[dict[str, Any]]
MODEL = "weights/all-MiniLM-L6-v2"


@dataclass(frozen=True)
class PeerTask:
    """A task with its settings. Batches are from the grid of BERT's paper (appendix A.3: 16 or 32). Epochs are few (the
    grid has 2 to 4), as the other side takes hours, and rates above the grid's 5e-5, as the model is half as wide as
    the smaller one of the paper.

    kind, metric: as Bertsmith names them. train_rows, dev_rows: how many are drawn (seed 0) where not all are taken.
    """

    kind: str
    metric: str
    epochs: int
    batch: int
    learning_rate: float = 1e-4
    warmup: float = 0.1
    weight_decay: float = 0.01
    epsilon: float = 1e-6
    max_gradient_norm: float = 1.0
    max_length: int = 128
    train_rows: int | None = None
    dev_rows: int | None = None
    seeds: int = 5


TASKS = {
    "mrpc": PeerTask("classify", "accuracy", epochs=2, batch=32),
    "cola": PeerTask("classify", "matthews", epochs=2, batch=32),
    "stsb": PeerTask("regress", "pearson", epochs=2, batch=32),
    "sst2": PeerTask("classify", "accuracy", epochs=1, batch=32, train_rows=10_000),
    "wnut17": PeerTask("tag", "entity_f1", epochs=3, batch=16, learning_rate=3e-4),
    "codah": PeerTask("choice", "accuracy", epochs=2, batch=16),
    "squad1": PeerTask("qa", "f1", 1, 12, max_length=384, train_rows=2000, dev_rows=1000, seeds=3),
    "squad2": PeerTask("qa", "f1", 1, 12, max_length=384, train_rows=2000, dev_rows=1000, seeds=3),
}
# Of SQuAD, as in Google's and NVIDIA's run_squad.py.
DOC_STRIDE, MAX_QUERY_LENGTH, N_BEST, MAX_ANSWER_LENGTH = 128, 64, 20, 30


def rows_of(name: str, data: Path, most: int | None = None) -> tuple[Rows, Rows]:
    """Train and dev rows of a task, as many as the table says and at most `most` of each."""
    train, dev = READERS[name](data)
    task = TASKS[name]
    return drawn(train, task.train_rows, most), drawn(dev, task.dev_rows, most)


def drawn(rows: Rows, count: int | None, most: int | None = None) -> Rows:
    """The smaller number of rows, with seed 0 and in their order."""
    count = min(each for each in (count, most, len(rows)) if each is not None)
    if count == len(rows):
        return rows
    return [rows[place] for place in sorted(np.random.default_rng(0).choice(len(rows), count, replace=False))]


def _table(path: Path, header: bool) -> list[list[str]]:
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    return [line.split("\t") for line in lines[header:] if line]


def _pairs(folder: Path, header: bool, **columns: int) -> tuple[Rows, Rows]:
    """columns: the place of each part of a row, counted from 0."""

    def read(part: str) -> Rows:
        table = _table(folder / f"{part}.tsv", header)
        return [{name: cells[place] for name, place in columns.items()} for cells in table]

    return read("train"), read("dev")


def _scores(data: Path) -> tuple[Rows, Rows]:
    found = _pairs(data / "glue/STS-B", True, text=7, text_b=8, label=9)
    train, dev = ([{**row, "label": float(row["label"])} for row in rows] for rows in found)
    return train, dev


def _choices(data: Path) -> tuple[Rows, Rows]:
    def read(part: str) -> Rows:
        table = _table(data / "swag/codah/fold_0" / f"{part}.tsv", False)
        return [{"text": cells[1], "choices": cells[2:6], "label": cells[6]} for cells in table]

    return read("train"), read("dev")


def _sentences(data: Path) -> tuple[Rows, Rows]:
    def read(name: str) -> Rows:
        text = (data / "ner/wnut17" / name).read_text(encoding="utf-8").replace("\r\n", "\n")
        rows = []
        for block in "\n".join(line.strip() for line in text.split("\n")).split("\n\n"):
            pairs = [line.split("\t") for line in block.split("\n") if line]
            if pairs:
                rows.append({"tokens": [pair[0] for pair in pairs], "tags": [pair[-1] for pair in pairs]})
        return rows

    return read("wnut17train.conll"), read("emerging.dev.conll")


def _questions(path: Path, without: Path | None = None) -> Rows:
    left_out = set(without.read_text().split()) if without else set()
    rows = []
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            for each in paragraph["qas"]:
                if each["id"] in left_out:
                    continue
                row = {"id": each["id"], "question": each["question"], "context": paragraph["context"]}
                rows.append(row | {"answers": each["answers"], "is_impossible": each.get("is_impossible", False)})
    return rows


def _squad1(data: Path) -> tuple[Rows, Rows]:
    # Questions whose answer stands at a place that was only guessed are no fair test of how answers are found.
    train = _questions(data / "squad/v1.1/train-v1.1.json", data / "squad/v1.1/train-ambiguous-ids.txt")
    return train, _questions(data / "squad/v1.1/dev-v1.1.json")


def _squad2(data: Path) -> tuple[Rows, Rows]:
    folder = data / "squad/v2.0"
    return _questions(folder / "train-subset-v2.0.json"), _questions(folder / "dev-subset-v2.0.json")


READERS = {
    "mrpc": lambda data: _pairs(data / "glue/MRPC", True, text=3, text_b=4, label=0),
    "cola": lambda data: _pairs(data / "glue/CoLA", False, text=3, label=1),
    "stsb": _scores,
    "sst2": lambda data: _pairs(data / "glue/SST-2", True, text=0, label=1),
    "wnut17": _sentences,
    "codah": _choices,
    "squad1": _squad1,
    "squad2": _squad2,
}
