"""The rows of a fine-tuning bench: drawn once from a benchmark's training file, and encoded once for the peer.

Ours reads the rows themselves; the peer is given what they are encoded to, in the order in which ours takes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import data_folder
from bertsmith.base.log import as_details
from bertsmith.tasks.benchmarks.benchmark import benchmarks
from bertsmith.tasks.benchmarks.inputs import benchmark_settings
from bertsmith.tasks.examples import encode_sources
from bertsmith.tasks.reading.bad_rows import raise_at_once
from bertsmith.tasks.reading.files import Form, rows_of
from bertsmith.tasks.registry import task_named
from bertsmith.tasks.sequences import load_tokenizer
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Examples, Task
from bertsmith.weights.huggingface import read_config

DEV_ROWS = 2
EPOCHS = 1000
"""So many that no turn comes to their end."""


@dataclass(frozen=True)
class BenchTask:
    """name: in tables. benchmark: its name in `benchmarks.yaml`. rows: how many are drawn, None for all. steps: of a
    turn."""

    name: str
    benchmark: str
    rows: int | None
    steps: int

    @property
    def kind(self) -> str:
        """Of the task."""
        return benchmarks()[self.benchmark].kind

    @property
    def settings(self) -> FinetuneSettings:
        """Of a run over its rows: the benchmark's, without an end."""
        return benchmark_settings(self.benchmark, epochs=EPOCHS, warmup=0.0)

    def files(self) -> dict[str, Path]:
        """The benchmark's files in the data folder by their part; {} where that of training rows is not there."""
        return benchmarks()[self.benchmark].found(data_folder(), ("train",))


TASKS = (
    BenchTask("MRPC", "mrpc", None, 5),
    BenchTask("SST-2", "sst2", 10_000, 16),
    BenchTask("SQuAD", "squad1", 2_000, 4),
)


@dataclass(frozen=True)
class Prepared:
    """A task on the disk. rows: a file of them, an object a line. features: their encodings, for `read_features`.
    records: the rows that are learned from. examples: what a step counts: these, or of questions their windows. tokens:
    of all examples. outputs: of the model."""

    task: BenchTask
    rows: Path
    features: Path
    records: int
    examples: int
    tokens: int
    outputs: int

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """What `dataclasses.asdict` made of one, after JSON."""
        paths = {name: Path(values[name]) for name in ("rows", "features")}
        return cls(**{**values, **paths, "task": BenchTask(**values["task"])})

    def about(self) -> str:
        """What a step goes through, in a line."""
        windows = f" in {self.examples:,} windows, which are the examples" if self.examples > self.records else ""
        drawn = f"{self.records:,} rows{windows}, {self.tokens / self.examples:.1f} tokens each"
        settings = self.task.settings
        drops = f"dropout {settings.dropout:g}, of attention {settings.attention_dropout:g}"
        return f"{self.task.name}: {drawn}, {settings.batch} a step, {drops}"


def prepare_task(task: BenchTask, model: Path, folder: Path) -> Prepared:
    """Draws the rows and encodes them, into a new folder. model: whose tokenizer encodes. Raises BertsmithError for
    rows that cannot be used; `task.files` must be there."""
    folder.mkdir(parents=True)
    paths, rows = (folder / "train.jsonl", folder / "features.npz"), _drawn(task)
    for path, some in ((paths[0], rows[:-DEV_ROWS]), (_dev(paths[0]), rows[-DEV_ROWS:])):
        path.write_text("".join(json.dumps(row) + "\n" for row in some), encoding="utf-8")
    made, parts = encode(task, paths[0], model, task.settings)
    train = parts["train"]
    _write_features(paths[1], train, made.order(train, task.settings.seed, 1))
    tokens, outputs = int(train.sequences.lengths.sum()), len(made.config().get("id2label", (0, 1)))
    return Prepared(task, *paths, len(train.records), len(train.targets), tokens, outputs)


def encode(task: BenchTask, rows: Path, model: Path, settings: FinetuneSettings) -> tuple[Task, dict[str, Examples]]:
    """The rows as `bertsmith finetune` encodes them, and a few as "dev", which a run must have."""
    kind, config = task_named(task.kind), read_config(model)
    length = min(settings.max_length or kind.usual_length, config.max_position_embeddings)
    with as_details():
        sources = {"train": rows, "dev": _dev(rows)}
        return encode_sources(kind, sources, load_tokenizer(model, config), length, settings)


def _dev(rows: Path) -> Path:
    """The file of the dev rows, beside that of the others."""
    return rows.with_name("dev.jsonl")


def _drawn(task: BenchTask) -> list[dict[str, Any]]:
    """The rows of the training file, or so many and a few for dev, drawn with seed 0 and left in their order."""
    benchmark = benchmarks()[task.benchmark]
    path = task.files()["train"]
    columns = benchmark.columns_of("train")
    rows = rows_of(path, Form(columns.get("header", True), columns.get("quoted")), raise_at_once)
    found = [dict(row) for _, row in rows if isinstance(row, Mapping)]
    if len(found) <= DEV_ROWS:
        raise BertsmithError(f"this file has {len(found)} rows", path, "use the benchmark's own file")
    count = min(len(found), (task.rows or len(found)) + DEV_ROWS)
    places = np.random.default_rng(0).choice(len(found), count, replace=False)
    return [found[place] for place in sorted(places)]


def _write_features(path: Path, train: Examples, order: np.ndarray[Any, np.dtype[np.int64]]) -> None:
    """The training units in the order of the first epoch. Each has one sequence."""
    members, _ = train.members(order)
    np.savez(
        path,
        ids=np.concatenate([train.sequences.ids[each] for each in members]),
        lengths=train.sequences.lengths[members],
        first_segments=train.sequences.first_segments[members],
        targets=train.targets[order],
    )


def read_features(path: Path) -> list[dict[str, Any]]:
    """The examples as transformers' tokenizers give them: lists of `input_ids`, `token_type_ids` and `attention_mask`,
    with `labels`, or `start_positions` and `end_positions`."""
    with np.load(path, allow_pickle=False) as found:
        sequences = np.split(found["ids"], np.cumsum(found["lengths"])[:-1])
        firsts, targets = found["first_segments"], found["targets"]
    examples = []
    for ids, first, target in zip(sequences, firsts, targets.tolist(), strict=True):
        truth = {"labels": target}
        if isinstance(target, list):
            truth = dict(zip(("start_positions", "end_positions"), target, strict=True))
        kinds = (np.arange(len(ids)) >= first).astype(np.int64).tolist()
        examples.append({"input_ids": ids.tolist(), "token_type_ids": kinds, "attention_mask": [1] * len(ids), **truth})
    return examples
