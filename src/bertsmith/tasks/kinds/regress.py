"""A number for one or two texts, such as how alike they are (STS-B), by the mean squared error.

Legend: N records, S sequences of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.base.errors import BertsmithError
from bertsmith.model.config import BertConfig
from bertsmith.model.distillation.losses import squared_sum
from bertsmith.model.losses import LossSum
from bertsmith.tasks.kinds.pooled import Classifier
from bertsmith.tasks.reading.pairs import are_pairs
from bertsmith.tasks.reading.records import Columns, Record, Row
from bertsmith.tasks.report.parts import about_records
from bertsmith.tasks.report.report import report_numbers
from bertsmith.tasks.scoring.numbers import number_figures
from bertsmith.tasks.sequences import Inputs, Sequences, batch_window_means, window_means
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Answer, Examples, Floats, FolderFacts, Task


@dataclass(frozen=True)
class Regress(Task):
    """pairs: whether rows have two texts. mean, low, high: of the training rows' numbers."""

    kind = "regress"
    architecture = "BertForSequenceClassification"
    architectures = (architecture,)
    head = "classifier"
    metrics = ("pearson", "spearman", "r2")
    baseline_name = "always the training mean"

    pairs: bool | None = None
    mean: float = 0.0
    low: float = 0.0
    high: float = 0.0
    overlap: int | None = None

    @classmethod
    def reads(cls, config: Mapping[str, Any]) -> bool:
        return config.get("problem_type") == "regression"

    @classmethod
    def record(cls, row: Row | str, columns: Columns, labelled: bool, where: str) -> Record:
        """The label is a float."""
        found = super().record(row, columns, labelled, where)
        return found if found.label is None else Record(found.text, found.text_b, _number(found.label), where, found.id)

    @classmethod
    def of_records(cls, records: Sequence[Record], settings: FinetuneSettings) -> Self:
        numbers = np.array([record.label for record in records])
        if len(np.unique(numbers)) == 1:
            what = f"all training rows have the number {numbers[0]:g}, so there is nothing to learn"
            raise BertsmithError(what, records[0].where, "check --columns.label")
        low, high = float(numbers.min()), float(numbers.max())
        overlap = settings.window_overlap if settings.windows else None
        return cls(are_pairs(records), float(numbers.mean()), low, high, overlap)

    @classmethod
    def of_folder(cls, facts: FolderFacts) -> Self:
        known = {name: facts.task[name] for name in ("pairs", "mean", "low", "high") if name in facts.task}
        return cls(**known, overlap=facts.task.get("window_overlap"))

    def build(self, config: BertConfig, compute: torch.dtype | None) -> Classifier:
        return Classifier(config, 1, compute)

    def targets(self, records: Sequence[Record], sequences: Sequences) -> NDArray[np.float32]:
        return np.array([record.label for record in records], dtype=np.float32)

    def loss_of(self, scores: Tensor, inputs: Inputs, targets: Tensor) -> LossSum:
        return squared_sum(batch_window_means(scores, inputs)[:, 0], targets)

    def distilled(
        self, scores: Tensor, teacher: Tensor, inputs: Inputs, targets: Tensor, temperature: float
    ) -> LossSum:
        return squared_sum(batch_window_means(scores, inputs)[:, 0], batch_window_means(teacher, inputs)[:, 0])

    def evaluate(self, scores: Floats, examples: Examples) -> dict[str, float]:
        return self._metrics(window_means(scores, examples.sequences)[:, 0], examples)

    def _metrics(self, numbers: NDArray[Any], examples: Examples) -> dict[str, float]:
        truths = np.array([record.label for record in examples.records], dtype=np.float64)
        return number_figures(numbers, truths).values(len(truths))

    def write(self, scores: Floats, examples: Examples, folder: Path) -> None:
        """The report (`tasks/report`)."""
        truths = np.array([record.label for record in examples.records], dtype=np.float64)
        numbers = window_means(scores, examples.sequences)[:, 0].astype(np.float64)
        report_numbers(folder, about_records(examples.part, examples.records), numbers, truths)

    def baseline(self, metric: str, examples: Examples) -> float:
        """That of the training rows' mean."""
        return self._metrics(np.full(len(examples.records), self.mean), examples)[metric]

    def description(self) -> list[str]:
        return [f"numbers from {self.low:g} to {self.high:g}, {self.mean:.4g} on average"]

    def config(self) -> dict[str, Any]:
        return {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "problem_type": "regression"}

    def facts(self) -> dict[str, Any]:
        numbers = {"mean": self.mean, "low": self.low, "high": self.high}
        return {"pairs": self.pairs, **numbers, "window_overlap": self.overlap}

    def shown(self, record: Record) -> str:
        return f"{record.label:g}"

    def answers_of(self, scores: Floats, records: Sequence[Record], sequences: Sequences) -> list[Answer]:
        """{"number"} for each row."""
        return [{"number": float(number)} for number in window_means(scores, sequences)[:, 0]]


def _number(label: str) -> float:
    try:
        number = float(label)
    except ValueError:
        raise ValueError(f"the label '{label}' is not a number") from None
    if not math.isfinite(number):
        raise ValueError(f"the label '{label}' is not a finite number")
    return number
