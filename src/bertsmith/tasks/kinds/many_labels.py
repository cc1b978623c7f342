"""Classification of one or two texts that have any number of labels: each label is a decision by itself.

Legend: N records, L labels.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say, warn
from bertsmith.model.config import BertConfig
from bertsmith.model.distillation.losses import soft_label_sum
from bertsmith.model.losses import LossSum
from bertsmith.rows.squad import TRUTHS
from bertsmith.tasks.kinds.pooled import (
    SEVERAL,
    Classifier,
    config_labels,
    fitted_number,
    listed,
    names_of_config,
    places_of,
    truths_of,
)
from bertsmith.tasks.losses import PLAIN, Rarity, balanced_label_weights, multi_label_sum
from bertsmith.tasks.reading.cells import listed_in
from bertsmith.tasks.reading.labels import class_name, class_names, marked_labels, several_labels
from bertsmith.tasks.reading.pairs import are_pairs
from bertsmith.tasks.reading.records import Columns, Record, Row, RowReader, columns_of, label_of
from bertsmith.tasks.report.parts import CROSS_FITTED, about_records, groups_of
from bertsmith.tasks.report.report import Labelled, report_labels
from bertsmith.tasks.sampling import Sampling, rows_of_epoch
from bertsmith.tasks.scoring.calibration import yes_probabilities
from bertsmith.tasks.scoring.classes import count_figures
from bertsmith.tasks.scoring.multilabel import label_metrics
from bertsmith.tasks.scoring.resampling import Bools, folds_of
from bertsmith.tasks.scoring.thresholds import HALF, LEAST_POSITIVES, best_thresholds, cross_fitted
from bertsmith.tasks.sequences import Inputs, Ints, Sequences, batch_window_means, window_means
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Answer, Examples, Floats, FolderFacts, Task


@dataclass(frozen=True)
class ManyLabels(Task):
    """names: of the L labels, in the order of the model's outputs. pairs: whether rows have two texts. counts: training
    rows that have each label, the most frequent first. rows: training rows. rarity, sampling: how training favours
    rare labels. thresholds: the probability from which on each label is given. fits: whether dev rows decide them:
    "tuned", "half", or "auto" where that raises `metric`. separator: between the labels of a cell; "" where rows have
    lists."""

    kind = "classify"
    architectures = ("BertForSequenceClassification",)
    head = "classifier"
    metrics = ("micro_f1", "macro_f1", "subset_accuracy", "micro_precision", "micro_recall")

    names: tuple[str, ...]
    pairs: bool | None = None
    counts: Mapping[str, int] | None = None
    rows: int = 0
    overlap: int | None = None
    rarity: Rarity = PLAIN
    sampling: Sampling = "natural"
    thresholds: tuple[float, ...] = ()
    fits: str = "auto"
    metric: str = "micro_f1"
    separator: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "thresholds", self.thresholds or (HALF,) * len(self.names))

    @classmethod
    def reads(cls, config: Mapping[str, Any]) -> bool:
        return config.get("problem_type") == SEVERAL

    @classmethod
    def record(cls, row: Row | str, columns: Columns, labelled: bool, where: str) -> Record:
        """The label is a tuple where the row has a list of labels, or JSON of one, they are separated, or have a column
        each; else a str."""
        if not labelled or not isinstance(row, Mapping):
            return RowReader.record(row, columns, labelled, where)
        several = columns_of(columns.label, row)
        if len(several) > 1:
            return replace(RowReader.record(row, columns, False, where), label=tuple(marked_labels(row, several)))
        label = several_labels(listed_in(row.get(columns.label), columns.label), columns.label_separator)
        if label is None:
            return RowReader.record(row, columns, labelled, where)
        names = [label_of({columns.label: each}, columns.label) for each in label]
        marks = {class_name(each).lower() for each in names} if len(set(names)) < len(names) else set()
        if marks <= TRUTHS.keys() and marks & {"0", "false"}:
            what = f"column '{columns.label}' has a 0 or 1 for each label, {', '.join(names)}"
            raise ValueError(f"{what}; list the names of those that the row has, or give each label a column")
        return replace(RowReader.record(row, columns, False, where), label=tuple(dict.fromkeys(names)))

    @classmethod
    def of_records(cls, records: Sequence[Record], settings: FinetuneSettings) -> Self:
        labels = [[class_name(each) for each in _labels(record)] for record in records]
        counts = Counter(each for row in labels for each in set(row))
        given, columns = settings.labels, columns_of(settings.columns.label, ())
        if given is None and len(columns) > 1 and counts.keys() <= set(columns):
            given = ",".join(columns)  # one that no training row has stays a label of the model
        names = class_names(counts.elements(), records[0].where, settings.many_labels, given)
        if all(counts[name] == len(records) and name.lower() in TRUTHS for name in names):
            fix = "list the names of those that a row has, or give each label a column"
            raise BertsmithError("all training rows list 0 and 1, as if for each label", records[0].where, fix)
        mark = settings.columns.label_separator
        if mark and max(map(len, labels)) < 2:
            what = "separates no labels: no training row has two"
            warn(f"'{mark}' (--columns.label-separator) {what}", of_all_ranks=True)
        elif {len(row) for row in labels} == {1}:
            what = "every training row has exactly one label, in a list or a column of its own"
            how = "an answer may be several labels or none; if a row always has one, write it in one column, no list"
            warn(f"{what}: each label is learned by itself, and {how}", of_all_ranks=True)
        for name in ("positive", "negative_label"):
            if getattr(settings, name) is not None:
                what = f"{name.replace('_label', '')} label with rows of several labels"
                raise BertsmithError(f"a {what}", name, "leave it out")
        if not settings.temperature:
            what = "no temperature is fitted to rows of several labels, each of which has a threshold"
            raise BertsmithError(what, "temperature", "leave out --no-temperature")
        weights = None
        if settings.class_weights == "balanced":
            weights = balanced_label_weights(np.array([counts[name] for name in names]), len(records))
        return cls(
            tuple(names),
            are_pairs(records),
            dict(counts.most_common()),
            len(records),
            settings.overlap,
            Rarity(weights, settings.focal, settings.label_smoothing),
            settings.sampling,
            fits=settings.thresholds,
            metric=cls.metric_of(settings),
            separator=settings.columns.label_separator,
        )

    @classmethod
    def of_folder(cls, facts: FolderFacts) -> Self:
        names, task = names_of_config(facts.config), facts.task
        found = task.get("thresholds", {})
        if not isinstance(found, dict) or not set(found) <= set(names):
            what = "thresholds is not an object with a number for each label"
            raise BertsmithError(what, "task.json", "fine-tune again")
        thresholds = tuple(fitted_number(found, name, HALF, zero=True) for name in names)
        columns = task.get("columns")
        separator = columns.get("label_separator", "") if isinstance(columns, dict) else ""
        overlap = task.get("window_overlap")
        return cls(tuple(names), task.get("pairs"), overlap=overlap, thresholds=thresholds, separator=separator)

    def build(self, config: BertConfig, compute: torch.dtype | None) -> Classifier:
        return Classifier(config, len(self.names), compute)

    def targets(self, records: Sequence[Record], sequences: Sequences) -> NDArray[np.uint8]:
        """1 where a record has a label: uint8[N, L]."""
        rows = [(row, each) for row, record in enumerate(records) for each in _labels(record)]
        found = np.zeros((len(records), len(self.names)), dtype=np.uint8)
        labels = [(each, records[row].where) for row, each in rows]
        found[[row for row, _ in rows], places_of(labels, self.names, several=True)] = 1
        return found

    def labels(self, targets: NDArray[Any]) -> int:
        return targets.size

    def order(self, examples: Examples, seed: int, epoch: int) -> Ints:
        """A row counts as one of its rarest label, and rows without labels are a class of their own."""
        true = truths_of(examples)
        by_rarity = np.argsort(true.sum(0), kind="stable")
        rarest = np.where(true.any(1), by_rarity[true[:, by_rarity].argmax(1)], len(self.names))
        return rows_of_epoch(len(true), rarest, self.sampling, seed, epoch)

    def loss_of(self, scores: Tensor, inputs: Inputs, targets: Tensor) -> LossSum:
        return multi_label_sum(batch_window_means(scores, inputs), targets, self.rarity)

    def distilled(
        self, scores: Tensor, teacher: Tensor, inputs: Inputs, targets: Tensor, temperature: float
    ) -> LossSum:
        return soft_label_sum(batch_window_means(scores, inputs), batch_window_means(teacher, inputs), temperature)

    def evaluate(self, scores: Floats, examples: Examples) -> dict[str, float]:
        predicted = self._predicted(window_means(scores, examples.sequences))
        return label_metrics(predicted, truths_of(examples) > 0)

    def _predicted(self, logits: Floats) -> Bools:
        return np.asarray(yes_probabilities(logits) >= np.array(self.thresholds))

    def tuned(self, scores: Floats, examples: Examples) -> Self:
        """With the threshold of each label that has the highest F1 on the dev rows.

        These raise the macro F1, and often at the cost of other metrics. So in doubt they are taken only where they
        raise the run's metric on rows that they were not tuned on.
        """
        if self.fits == "half":
            return self
        p, true = yes_probabilities(window_means(scores, examples.sequences)), truths_of(examples) > 0
        found, fold = best_thresholds(p, true), folds_of(len(true), groups_of(examples.records))
        task = replace(self, thresholds=tuple(each.value for each in found))
        sides = (p >= HALF, cross_fitted(p, true, fold), p >= np.array(task.thresholds))
        before, after, own = (label_metrics(side, true) for side in sides)
        for name in dict.fromkeys((self.metric, "macro_f1")):
            how = f"tuned on other dev rows {after[name]:.4f}, on the same {own[name]:.4f}"
            say(f"thresholds: {name} on dev {before[name]:.4f} at 0.5, {how}")
        if self.fits == "auto" and after[self.metric] <= before[self.metric]:
            say(f"thresholds: 0.5 for all labels: others do not raise {self.metric} (--thresholds tuned takes them)")
            return self
        kept = [name for name, each in zip(self.names, found, strict=True) if not each.tuned]
        if kept:
            why = f"fewer than {LEAST_POSITIVES} dev rows have them, or all do"
            say(f"thresholds: 0.5 stays for {len(kept)} of {len(found)} labels ({why}): {', '.join(kept)}")
        return task

    @property
    def tunes_each_time(self) -> bool:
        return self.fits == "tuned"

    def cross_fitted(self, scores: Floats, examples: Examples) -> dict[str, float]:
        predicted = self._predicted_by_others(window_means(scores, examples.sequences), examples)
        return {} if predicted is None else label_metrics(predicted, truths_of(examples) > 0)

    def _predicted_by_others(self, logits: Floats, examples: Examples) -> Bools | None:
        """The labels of each row by thresholds that are tuned on other rows; None where none is tuned."""
        if set(self.thresholds) == {HALF} and not self.tunes_each_time:
            return None
        true, fold = truths_of(examples) > 0, folds_of(len(logits), groups_of(examples.records))
        return cross_fitted(yes_probabilities(logits), true, fold)

    def write(self, scores: Floats, examples: Examples, folder: Path) -> None:
        logits, true = window_means(scores, examples.sequences), truths_of(examples) > 0
        about = about_records(examples.part, examples.records)
        by_others = self._predicted_by_others(logits, examples) if about.part == "dev" else None
        predicted, note = (self._predicted(logits), "") if by_others is None else (by_others, CROSS_FITTED)
        report_labels(folder, about, Labelled(self.names, logits, true, predicted, self.thresholds), note)

    def baseline(self, metric: str, examples: Examples) -> float:
        """The best of giving every row the most frequent label, the two most frequent ones, and so on, or none."""
        most = len(self.counts or self.names)
        order = [self.names.index(name) for name in dict.fromkeys((*(self.counts or ()), *self.names))]
        true = (truths_of(examples) > 0)[:, order]
        given = np.tri(len(order) + 1, len(order), -1, dtype=bool)  # the first labels, from none to all
        if metric == "subset_accuracy":
            sizes = true.sum(1)
            met = np.bincount(sizes[(true == given[sizes]).all(1)], minlength=1)
            return float(met[: most + 1].max() / len(true))
        rows = true.sum(0)[None]  # figures of counts are those of their sums over rows
        figures = (count_figures(rows * each, len(true) * each[None], rows, ()) for each in given[: most + 1])
        return max(each.values(1)[metric] for each in figures)

    def description(self) -> list[str]:
        counts = self.counts or {}
        lines = ["train rows by label: " + listed({name: f"{count:,}" for name, count in counts.items()})]
        lines.append(f"rows have any number of labels, {sum(counts.values()) / max(1, self.rows):.2f} on average")
        if self.rarity.weights is not None:
            sides = zip(self.names, self.rarity.weights, strict=True)
            found = {name: f"{side[0]:.3g}/{side[1]:.3g}" for name, side in sides if isinstance(side, tuple)}
            lines.append("weights of a label's absence/presence: " + listed(found))
        if self.sampling != "natural":
            lines.append(f"{self.sampling} sampling counts a row as one of its rarest label")
        return lines

    def config(self) -> dict[str, Any]:
        return config_labels(self.names, SEVERAL)

    def facts(self) -> dict[str, Any]:
        thresholds = dict(zip(self.names, self.thresholds, strict=True))
        return {"pairs": self.pairs, "thresholds": thresholds, "window_overlap": self.overlap}

    def shown(self, record: Record) -> str:
        return self._joined([class_name(each) for each in _labels(record)])

    def answers_of(self, scores: Floats, records: Sequence[Record], sequences: Sequences) -> list[Answer]:
        """{"labels", "scores"} for each row: the labels that reach their thresholds, and the probability of each."""
        logits = window_means(scores, sequences)
        return [
            {
                "labels": [name for name, given in zip(self.names, those, strict=True) if given],
                "scores": {name: float(each) for name, each in zip(self.names, row, strict=True)},
            }
            for those, row in zip(self._predicted(logits), yes_probabilities(logits), strict=True)
        ]

    def cells(self, answer: Answer) -> Answer:
        """The labels are joined as the training rows have them."""
        return {**answer, "labels": self._joined(answer["labels"])}

    def _joined(self, labels: Sequence[str]) -> str:
        """As the training rows have them in one cell; as JSON where they had lists."""
        return self.separator.join(labels) if self.separator else json.dumps(list(labels), ensure_ascii=False)


def _labels(record: Record) -> Sequence[str]:
    return record.label if isinstance(record.label, tuple) else (str(record.label),)
