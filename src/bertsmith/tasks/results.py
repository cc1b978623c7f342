"""What fine-tuning found, as Python values, as JSON and as a line to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.sequences import Truncated

TEST = "test_"
"""What stands before the names of the figures on the test rows in a record of metrics."""


@dataclass(frozen=True)
class EpochResult:
    """An epoch: the mean training loss over its rows, and every metric on the dev rows and, if given, the test rows."""

    train_loss: float
    dev: dict[str, float]
    test: dict[str, float] | None = None


@dataclass(frozen=True)
class SeedResult:
    """A run from one seed. best_epoch counts from 1 and has the best `score`, its metric on the dev rows."""

    seed: int
    epochs: list[EpochResult]
    best_epoch: int
    score: float

    @property
    def best(self) -> EpochResult:
        """The epoch whose weights are taken."""
        return self.epochs[self.best_epoch - 1]


@dataclass(frozen=True)
class FinetuneResult:
    """The runs of all seeds.

    folder: the run folder, None where none was wanted. baseline: the metric of always saying the label that is most
    frequent in training. class_counts: training rows of each label. rows, truncated: of train, dev and test. seconds:
    wall time of the call that ended the run.
    """

    folder: Path | None
    task: str
    metric: str
    seeds: list[SeedResult]
    baseline: float
    class_counts: dict[str, int]
    rows: dict[str, int]
    truncated: dict[str, Truncated]
    seconds: float

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], folder: Path) -> Self:
        """What `to_dict` made of one."""
        missing = [name for name in cls.__dataclass_fields__ if name != "folder" and name not in values]
        if missing:
            fix = "put the file back as it was, or run the training again in another folder"
            raise BertsmithError(f"this file lacks {', '.join(missing)}", folder / "model" / "finetune.json", fix)
        kept = {name: values[name] for name in cls.__dataclass_fields__ if name != "folder"}
        seeds = [
            SeedResult(**{**each, "epochs": [EpochResult(**one) for one in each["epochs"]]}) for each in kept["seeds"]
        ]
        truncated = {name: Truncated(**each) for name, each in kept["truncated"].items()}
        return cls(folder=folder, **{**kept, "seeds": seeds, "truncated": truncated})

    @property
    def model(self) -> Path | None:
        """The folder of the finished model."""
        return None if self.folder is None else self.folder / "model"

    @property
    def scores(self) -> list[float]:
        """The metric of every seed on the dev rows, at its best epoch."""
        return [each.score for each in self.seeds]

    @property
    def mean(self) -> float:
        """Of `scores`."""
        return float(np.mean(self.scores))

    @property
    def standard_deviation(self) -> float:
        """Of `scores`; 0 for a single seed, which says nothing of the spread."""
        return _deviation(self.scores)

    @property
    def last_scores(self) -> list[float]:
        """The metric of every seed on the dev rows after its last epoch, which was not selected."""
        return [each.epochs[-1].dev[self.metric] for each in self.seeds]

    @property
    def test_scores(self) -> list[float]:
        """The metric of every seed on the test rows, at the epoch that is best on dev; [] without test rows."""
        return [each.best.test[self.metric] for each in self.seeds if each.best.test is not None]

    @property
    def best(self) -> SeedResult:
        """The first of the best seeds, whose model was kept."""
        return max(self.seeds, key=lambda each: each.score)

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it, with mean and standard deviation, without the folder."""
        values = asdict(self)
        del values["folder"]
        return {
            **values,
            "mean": self.mean,
            "standard_deviation": self.standard_deviation,
            "best_seed": self.best.seed,
            "last_epoch_scores": self.last_scores,
            "test_scores": self.test_scores,
            **{f"{part}_rows": count for part, count in self.rows.items()},
            "truncated_rows": self.truncated["train"].rows,
        }

    def line(self) -> str:
        """The outcome in one line. A score that selected the epoch is labelled so, next to the last epoch's."""
        best = self.best
        epochs = len(best.epochs)
        selected = (
            f"best of {epochs} epochs on dev; last epoch {np.mean(self.last_scores):.4f}" if epochs > 1 else "dev"
        )
        found = [
            f"dev {self.metric} {_spread(self.scores)} ({selected}; most frequent label {self.baseline:.4f})",
            *([f"test {self.metric} {_spread(self.test_scores)}"] if self.test_scores else []),
            f"kept seed {best.seed}, epoch {best.best_epoch}: {best.score:.4f}",
        ]
        return "; ".join(found)


def results_of(
    records: Sequence[Mapping[str, Any]], metric: str, epoch_steps: int, expected: Mapping[int, int]
) -> list[SeedResult]:
    """The figures of every seed, from the records of `metrics.jsonl`.

    epoch_steps: steps of an epoch. expected: epochs of each seed. Raises BertsmithError where records are missing.
    """
    seeds: dict[int, list[EpochResult]] = {}
    for record in (each for each in records if each["kind"] == "evaluation"):
        figures = {name: value for name, value in record.items() if isinstance(value, float)}
        test = {name.removeprefix(TEST): value for name, value in figures.items() if name.startswith(TEST)}
        dev = {name: value for name, value in figures.items() if not name.startswith(TEST)}
        loss = _epoch_loss(records, record, epoch_steps)
        seeds.setdefault(record["seed"], []).append(EpochResult(loss, dev, test or None))
    if {seed: len(epochs) for seed, epochs in seeds.items()} != dict(expected):
        raise BertsmithError(
            "records of epochs are missing, so the figures of this run cannot be told",
            "metrics.jsonl",
            "put the file back as it was, or run the training again in another folder",
        )
    found = []
    for seed, epochs in seeds.items():
        scores = [each.dev[metric] for each in epochs]
        found.append(SeedResult(seed, epochs, scores.index(max(scores)) + 1, max(scores)))
    return found


def _epoch_loss(records: Sequence[Mapping[str, Any]], end: Mapping[str, Any], epoch_steps: int) -> float:
    """The mean loss of a row over the epoch that the evaluation `end` stands behind."""
    inside = [
        each
        for each in records
        if each["kind"] == "train"
        and each["seed"] == end["seed"]
        and end["seed_step"] - epoch_steps < each["seed_step"] <= end["seed_step"]
    ]
    return float(sum(each["loss"] * each["count"] for each in inside) / sum(each["count"] for each in inside))


def _deviation(scores: Sequence[float]) -> float:
    """With K - 1 below."""
    return float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0


def _spread(scores: Sequence[float]) -> str:
    spread = f" +- {_deviation(scores):.4f} over {len(scores)} seeds" if len(scores) > 1 else ""
    return f"{np.mean(scores):.4f}{spread}"
