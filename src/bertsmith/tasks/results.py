"""What fine-tuning found, as Python values, as JSON and as a line to read."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class EpochResult:
    """An epoch: the mean training loss over its rows, and every metric on the dev rows."""

    train_loss: float
    dev: dict[str, float]


@dataclass(frozen=True)
class SeedResult:
    """A run from one seed. best_epoch counts from 1; score is its metric on the dev rows."""

    seed: int
    epochs: list[EpochResult]
    best_epoch: int
    score: float


@dataclass(frozen=True)
class FinetuneResult:
    """The runs of all seeds.

    folder: the finished model, None where none was asked for. baseline: the metric of always saying the label that is
    most frequent in training. class_counts: training rows of each label. seconds: wall time of all runs.
    """

    folder: Path | None
    task: str
    metric: str
    seeds: list[SeedResult]
    baseline: float
    class_counts: dict[str, int]
    train_rows: int
    dev_rows: int
    truncated_rows: int
    seconds: float

    @property
    def scores(self) -> list[float]:
        """The metric of every seed."""
        return [each.score for each in self.seeds]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return float(np.mean(self.scores))

    @property
    def standard_deviation(self) -> float:
        """Over the seeds, with K - 1 below; 0 for a single seed, which says nothing of the spread."""
        return float(np.std(self.scores, ddof=1)) if len(self.scores) > 1 else 0.0

    @property
    def best(self) -> SeedResult:
        """The first of the best seeds, whose model was kept."""
        return max(self.seeds, key=lambda each: each.score)

    def to_dict(self) -> dict[str, Any]:
        """As JSON takes it, with mean and standard deviation, without the folder."""
        values = asdict(self)
        del values["folder"]
        return {**values, "mean": self.mean, "standard_deviation": self.standard_deviation, "best_seed": self.best.seed}

    def line(self) -> str:
        """The outcome in one line."""
        spread = f" +- {self.standard_deviation:.4f} over {len(self.seeds)} seeds" if len(self.seeds) > 1 else ""
        kept = f"kept seed {self.best.seed}, epoch {self.best.best_epoch}: {self.best.score:.4f}"
        return f"dev {self.metric} {self.mean:.4f}{spread} (most frequent label: {self.baseline:.4f}); {kept}"
