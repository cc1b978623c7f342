"""A number for one or two texts, such as how alike they are (STS-B), by the mean squared error.

Legend: N records, S sequences of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import warn
from bertsmith.model.config import BertConfig
from bertsmith.model.distillation.losses import squared_sum
from bertsmith.model.losses import LossSum
from bertsmith.tasks.kinds.pooled import Classifier, config_labels, names_of_config, outputs_of
from bertsmith.tasks.reading.labels import number_of
from bertsmith.tasks.reading.pairs import are_pairs
from bertsmith.tasks.reading.records import Columns, Record, Row
from bertsmith.tasks.report.parts import about_records
from bertsmith.tasks.report.report import report_numbers
from bertsmith.tasks.scoring.numbers import number_figures
from bertsmith.tasks.sequences import Inputs, Sequences, batch_window_means, window_means
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Answer, Examples, Floats, FolderFacts, Task

_LARGEST = float(np.finfo(np.float32).max)
# Steps of fp32 below this share of the labels' deviation change no figure that anyone reads.
_FINE = 1e-2


class NumberModel(Classifier):
    """A classifier of one output, which while it learns is `unit` times the head's, plus `centre`.

    With the mean and the standard deviation of the training rows' numbers the head has to learn numbers near 0 and 1,
    whatever the unit of the labels: AdamW moves a weight by about the learning rate a step, so a head of years or
    prices would stay near 0 for thousands of steps. The head is linear, so that both go into it exactly.
    """

    centre, unit = 0.0, 1.0

    def forward(self, inputs: Inputs) -> Tensor:
        """fp32[S, 1], in the unit of the labels."""
        return self.centre + self.unit * super().forward(inputs)

    @torch.no_grad()
    def rescale(self, centre: float, unit: float) -> None:
        """Gives the same numbers with another centre and unit; 0 and 1 leave the head alone."""
        self.classifier.weight.mul_(self.unit / unit)
        self.classifier.bias.mul_(self.unit / unit).add_((self.centre - centre) / unit)
        self.centre, self.unit = centre, unit


@dataclass(frozen=True)
class Regress(Task):
    """pairs: whether rows have two texts. mean, deviation, low, high: of the training rows' numbers."""

    kind = "regress"
    architectures = ("BertForSequenceClassification",)
    head = "classifier"
    metrics = ("pearson", "spearman", "r2")
    baseline_name = "always the training mean"
    identity: ClassVar[Mapping[str, str]] = {"labels": "centred and scaled"}

    pairs: bool | None = None
    mean: float = 0.0
    deviation: float = 1.0
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
        return found if found.label is None else replace(found, label=_number(found.label))

    @classmethod
    def of_records(cls, records: Sequence[Record], settings: FinetuneSettings) -> Self:
        numbers = np.array([record.label for record in records])
        if len(np.unique(numbers)) == 1:
            what = f"all training rows have the number {numbers[0]:g}, so there is nothing to learn"
            raise BertsmithError(what, records[0].where, "check --columns.label")
        mean, deviation, low, high = (float(of(numbers)) for of in (np.mean, np.std, np.min, np.max))
        _warn_of_steps(max(-low, high), deviation)
        return cls(are_pairs(records), mean, deviation, low, high, settings.overlap)

    @classmethod
    def of_folder(cls, facts: FolderFacts) -> Self:
        outputs = outputs_of(facts.config, usual=1) or len(names_of_config(facts.config))
        if outputs != 1:
            fix = "use a model that gives one number"
            raise BertsmithError(f"this model gives {outputs} numbers for a row", "config.json", fix)
        known = {name: facts.task[name] for name in ("pairs", "mean", "low", "high") if name in facts.task}
        return cls(**known, overlap=facts.task.get("window_overlap"))

    def build(self, config: BertConfig, compute: torch.dtype | None) -> NumberModel:
        return NumberModel(config, 1, compute)

    def start(self, model: nn.Module, fresh: bool) -> None:
        assert isinstance(model, NumberModel)
        if fresh:
            model.centre, model.unit = self.mean, self.deviation
        else:
            model.rescale(self.mean, self.deviation)

    def finish(self, model: nn.Module) -> None:
        assert isinstance(model, NumberModel)
        model.rescale(0.0, 1.0)

    def targets(self, records: Sequence[Record], sequences: Sequences) -> NDArray[np.float32]:
        return np.array([record.label for record in records], dtype=np.float32)

    def loss_of(self, scores: Tensor, inputs: Inputs, targets: Tensor) -> LossSum:
        return self._squared(batch_window_means(scores, inputs)[:, 0] - targets)

    def _squared(self, differences: Tensor) -> LossSum:
        """In standard deviations of the training rows' numbers. Divided first: the square of 1e20 is no fp32 number."""
        return squared_sum(differences / self.deviation, torch.zeros_like(differences))

    def distilled(
        self, scores: Tensor, teacher: Tensor, inputs: Inputs, targets: Tensor, temperature: float
    ) -> LossSum:
        ours, theirs = (batch_window_means(each, inputs)[:, 0] for each in (scores, teacher))
        return self._squared(ours - theirs)

    def evaluate(self, scores: Floats, examples: Examples) -> dict[str, float]:
        return self._metrics(window_means(scores, examples.sequences)[:, 0], examples)

    def _metrics(self, numbers: NDArray[Any], examples: Examples) -> dict[str, float]:
        truths = np.array([record.label for record in examples.records], dtype=np.float64)
        return number_figures(numbers, truths).values(len(truths))

    def write(self, scores: Floats, examples: Examples, folder: Path) -> None:
        truths = np.array([record.label for record in examples.records], dtype=np.float64)
        numbers = window_means(scores, examples.sequences)[:, 0].astype(np.float64)
        report_numbers(folder, about_records(examples.part, examples.records), numbers, truths)

    def baseline(self, metric: str, examples: Examples) -> float:
        """That of the training rows' mean."""
        return self._metrics(np.full(len(examples.records), self.mean), examples)[metric]

    def description(self) -> list[str]:
        numbers = f"numbers from {self.low:g} to {self.high:g}, {self.mean:.4g} on average"
        return [f"{numbers}; the loss counts their standard deviation, {self.deviation:.4g}, as 1, rmse and mae do not"]

    def config(self) -> dict[str, Any]:
        return config_labels(["LABEL_0"], "regression")

    def facts(self) -> dict[str, Any]:
        numbers = {"mean": self.mean, "low": self.low, "high": self.high}
        return {"pairs": self.pairs, **numbers, "window_overlap": self.overlap}

    def shown(self, record: Record) -> str:
        return f"{record.label:g}"

    def answers_of(self, scores: Floats, records: Sequence[Record], sequences: Sequences) -> list[Answer]:
        """{"number"} for each row."""
        return [{"number": float(number)} for number in window_means(scores, sequences)[:, 0]]


def _number(label: str) -> float:
    number = number_of(label)
    if abs(number) > _LARGEST:
        raise ValueError(f"the label '{label}' is beyond {_LARGEST:.2g}, the largest number that a model gives (fp32)")
    return number


def _warn_of_steps(largest: float, deviation: float) -> None:
    """Where fp32, in which a model gives its numbers, has few of them between the labels."""
    step = float(np.spacing(np.float32(largest)))
    if step > _FINE * deviation:
        what = f"the labels are as large as {largest:g} and their standard deviation is {deviation:.3g}"
        why = f"a model tells such numbers in steps of {step:.3g} (fp32)"
        warn(f"{what}, but {why}: subtract the same number from all labels, and add it to the answers", True)
