"""Classification of one or two texts, one label a row: the labels, what is fitted to dev rows, and the answers.

Rows with any number of labels are the kind of `many_labels.py`. Legend: N records, C classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.log import counted, say
from bertsmith.model.config import BertConfig
from bertsmith.model.distillation.losses import soft_sum
from bertsmith.model.losses import LossSum
from bertsmith.tasks.kinds.many_labels import ManyLabels
from bertsmith.tasks.kinds.pooled import (
    SEVERAL,
    SINGLE,
    Classifier,
    config_labels,
    fitted_number,
    listed,
    names_of_config,
    places_of,
    said_of,
    truths_of,
)
from bertsmith.tasks.losses import PLAIN, Rarity, balanced_weights, single_label_sum
from bertsmith.tasks.reading.bad_rows import refusal
from bertsmith.tasks.reading.labels import class_name, class_names, refuse_ids, warn_of_joined
from bertsmith.tasks.reading.pairs import are_pairs
from bertsmith.tasks.reading.records import Columns, Record, Row
from bertsmith.tasks.report.parts import CROSS_FITTED, about_records, groups_of
from bertsmith.tasks.report.report import Classified, report_classes
from bertsmith.tasks.sampling import Sampling, quotas, rows_of_epoch
from bertsmith.tasks.scoring.calibration import calibrate, calibrated_elsewhere, probabilities
from bertsmith.tasks.scoring.classes import class_metrics
from bertsmith.tasks.scoring.resampling import folds_of
from bertsmith.tasks.scoring.thresholds import HALF, best_threshold, cross_fitted
from bertsmith.tasks.sequences import Inputs, Ints, Sequences, batch_window_means, window_means
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Answer, Examples, Floats, FolderFacts, Task

_BINARY, _MICRO = "binary_f1", "micro_f1"


@dataclass(frozen=True)
class Classify(Task):
    """names: of the C classes, in the order of the model's outputs. pairs: whether rows have two texts. positive: the
    class that `binary_f1` scores, where there are two. counts: training rows of each class, the most frequent first.
    rarity, sampling: how training favours rare classes. temperature: what scores are divided by. in_weights: whether
    the model's head already is, as in finished folders. threshold: the probability from which on a row is given the
    positive class. fits_temperature, fits_threshold: whether dev rows decide them. negative: the class that `micro_f1`
    leaves out, where one is named."""

    kind = "classify"
    architectures = ("BertForSequenceClassification",)
    head = "classifier"
    metrics = ("accuracy", "macro_f1", _BINARY, "matthews", _MICRO)

    names: tuple[str, ...]
    pairs: bool | None = None
    positive: str | None = None
    counts: Mapping[str, int] | None = None
    overlap: int | None = None
    rarity: Rarity = PLAIN
    sampling: Sampling = "natural"
    temperature: float = 1.0
    in_weights: bool = False
    threshold: float = HALF
    fits_temperature: bool = True
    fits_threshold: bool = False
    negative: str | None = None

    @classmethod
    def reads(cls, config: Mapping[str, Any]) -> bool:
        return config.get("problem_type") not in ("regression", SEVERAL)

    @classmethod
    def record(cls, row: Row | str, columns: Columns, labelled: bool, where: str) -> Record:
        """The label is a str, or a tuple where the row may have several, as of `ManyLabels`."""
        return ManyLabels.record(row, columns, labelled, where)

    @classmethod
    def check_labels(cls, records: Sequence[Record], settings: FinetuneSettings) -> None:
        labels = [record.label for record in records if isinstance(record.label, str)]
        if len(labels) == len(records) and not settings.many_labels and settings.labels is None:
            refuse_ids(labels, records[0].where)

    @classmethod
    def metric_of(cls, settings: FinetuneSettings) -> str:
        """One of several labels a row is let through: only the rows tell."""
        several = settings.metric in ManyLabels.metrics and settings.metric not in cls.metrics
        return settings.metric if several else super().metric_of(settings)

    @classmethod
    def of_records(cls, records: Sequence[Record], settings: FinetuneSettings) -> Self | ManyLabels:
        lists = [record for record in records if isinstance(record.label, tuple)]
        if lists and 2 * len(lists) < len(records):
            bad = [(_of_list(record), list(record.label)) for record in lists]
            raise refusal(bad, len(records) - len(lists), "the training rows", bad[0][0].fix)
        if lists:
            return ManyLabels.of_records(records, settings)
        labels = [str(record.label) for record in records]
        names = class_names(labels, records[0].where, settings.many_labels, settings.labels)
        if settings.labels is None:
            warn_of_joined(names)
        positive = _positive(names, settings)
        if settings.metric not in ("auto", *cls.metrics):
            fix = f"use one of {', '.join(cls.metrics)}; or name what separates labels with --columns.label-separator"
            raise BertsmithError(f"{settings.metric} is of rows with several labels; these have one", "metric", fix)
        if settings.thresholds == "tuned" and positive is None:
            what = f"thresholds are tuned for two labels, or for rows with several; these have one of {len(names)}"
            raise BertsmithError(what, "thresholds", "leave it at auto")
        counts = Counter(map(class_name, labels))
        weights = None
        if settings.class_weights == "balanced":
            weights = balanced_weights(np.array([counts[name] for name in names]))
        return cls(
            tuple(names),
            are_pairs(records),
            positive,
            dict(counts.most_common()),
            settings.overlap,
            Rarity(weights, settings.focal, settings.label_smoothing),
            settings.sampling,
            fits_temperature=settings.temperature,
            fits_threshold=settings.thresholds == "tuned",
            negative=_negative(names, settings),
        )

    @classmethod
    def of_folder(cls, facts: FolderFacts) -> Self:
        names, task = names_of_config(facts.config), facts.task
        kind = facts.config.get("problem_type") or SINGLE
        if kind != SINGLE or len(names) < 2:
            fix = "use a classifier of one label a row, out of two or more"
            raise BertsmithError(f"problem_type is {kind} with {counted(len(names), 'label')}", "config.json", fix)
        return cls(
            tuple(names),
            task.get("pairs"),
            task.get("positive"),
            overlap=task.get("window_overlap"),
            temperature=fitted_number(task, "temperature", 1.0),
            in_weights=said_of(task, "temperature_in_weights"),
            threshold=fitted_number(task, "threshold", HALF, zero=True),
            negative=task.get("negative"),
        )

    def build(self, config: BertConfig, compute: torch.dtype | None) -> Classifier:
        return Classifier(config, len(self.names), compute)

    def targets(self, records: Sequence[Record], sequences: Sequences) -> Ints:
        for record in records:
            if isinstance(record.label, tuple):
                raise _of_list(record)
        return np.array(places_of([(str(each.label), each.where) for each in records], self.names), dtype=np.int64)

    def order(self, examples: Examples, seed: int, epoch: int) -> Ints:
        return rows_of_epoch(len(examples.targets), truths_of(examples), self.sampling, seed, epoch)

    def loss_of(self, scores: Tensor, inputs: Inputs, targets: Tensor) -> LossSum:
        return single_label_sum(batch_window_means(scores, inputs), targets, self.rarity)

    def distilled(
        self, scores: Tensor, teacher: Tensor, inputs: Inputs, targets: Tensor, temperature: float
    ) -> LossSum:
        return soft_sum(batch_window_means(scores, inputs), batch_window_means(teacher, inputs), temperature)

    def evaluate(self, scores: Floats, examples: Examples) -> dict[str, float]:
        return self._metrics(self._predicted(window_means(scores, examples.sequences)), truths_of(examples))

    def _predicted(self, logits: Floats) -> Ints:
        """The class of each row of scores: the likeliest, or by the threshold of the positive one."""
        if self.threshold == HALF or self.positive is None:
            return np.asarray(logits.argmax(1), dtype=np.int64)
        place = self._place(self.positive)
        return np.where(self._probabilities(logits)[:, place] >= self.threshold, place, 1 - place)

    def _probabilities(self, logits: Floats) -> NDArray[np.float64]:
        return probabilities(logits, 1.0 if self.in_weights else self.temperature)

    @property
    def _sides(self) -> tuple[int | None, int | None]:
        """The places of the positive and of the negative class."""
        positive, negative = (None if each is None else self._place(each) for each in (self.positive, self.negative))
        return positive, negative

    def _place(self, label: str) -> int:
        """Of a class that task.json names. Raises BertsmithError where config.json has none of this name."""
        if label not in self.names:
            fix = f"name one of config.json there; {nearest(str(label), self.names)}"
            raise BertsmithError(f"'{label}' is none of this model's labels", "task.json", fix)
        return self.names.index(label)

    def _metrics(self, predicted: Ints, targets: Ints) -> dict[str, float]:
        return class_metrics(predicted, targets, len(self.names), *self._sides)

    def tuned(self, scores: Floats, examples: Examples) -> Self:
        """With the temperature, and the threshold where the user wants one, that suit the dev rows."""
        logits, true, task = window_means(scores, examples.sequences), truths_of(examples), self
        if self.fits_temperature:
            found = calibrate(logits, true, groups_of(examples.records))
            task = replace(task, temperature=found.temperature)
            used = f"temperature {found.temperature:.4g}" if found.kept else "no temperature"
            change = f"calibration error on dev {found.before.ece:.4f} before, {found.after.ece:.4f} after"
            say(f"{used}: {change} ({found.remark})")
        if self.fits_threshold and self.positive is not None:
            place = self.names.index(self.positive)
            best = best_threshold(task._probabilities(logits)[:, place], true == place)
            task = replace(task, threshold=best.value)
            why = "" if best.tuned else f": {best.positives} dev rows have it, too few to tune on, or all do"
            what = f"binary_f1 of the rows it was tuned on {best.f1_at_half:.4f} at 0.5, {best.f1:.4f} with it"
            say(f"threshold of '{self.positive}': {best.value:.4g}{why or f' ({what})'}")
        return task

    @property
    def tunes_each_time(self) -> bool:
        return self.fits_threshold

    def put_into(self, model: nn.Module) -> Self:
        """Divides the head by the temperature."""
        with torch.no_grad():
            for weights in model.get_submodule(self.head).parameters():
                weights.div_(self.temperature)
        return replace(self, in_weights=True)

    def cross_fitted(self, scores: Floats, examples: Examples) -> dict[str, float]:
        predicted = self._predicted_by_others(window_means(scores, examples.sequences), examples)
        return {} if predicted is None else self._metrics(predicted, truths_of(examples))

    def _predicted_by_others(self, logits: Floats, examples: Examples) -> Ints | None:
        """The class of each row by the threshold that is tuned on other rows; None where none is tuned."""
        positive, _ = self._sides
        if not self.fits_threshold or positive is None:
            return None
        true = truths_of(examples)[:, None] == positive
        fold = folds_of(len(true), groups_of(examples.records))
        decided = cross_fitted(self._probabilities(logits)[:, [positive]], true, fold)[:, 0]
        return np.where(decided, positive, 1 - positive)

    def write(self, scores: Floats, examples: Examples, folder: Path) -> None:
        if self.in_weights:  # it compares the scores before and after the temperature
            return replace(self, in_weights=False).write(self.temperature * scores, examples, folder)
        logits, true = window_means(scores, examples.sequences), truths_of(examples)
        about = about_records(examples.part, examples.records)
        by_others = self._predicted_by_others(logits, examples) if about.part == "dev" else None
        predicted, note = (self._predicted(logits), "") if by_others is None else (by_others, CROSS_FITTED)
        if about.part != "dev" or not self.fits_temperature:
            calibration = calibrated_elsewhere(logits, true, self.temperature)
        else:
            calibration = calibrate(logits, true, about.groups)
        found = Classified(self.names, logits, true, predicted, *self._sides)
        report_classes(folder, about, found, calibration, note)

    def baseline(self, metric: str, examples: Examples) -> float:
        most_frequent = self.names.index(next(iter(self.counts or self.names)))
        targets = truths_of(examples)
        return self._metrics(np.full_like(targets, most_frequent), targets)[metric]

    def description(self) -> list[str]:
        counts = self.counts or {}
        lines = ["train rows by label: " + listed({name: f"{count:,}" for name, count in counts.items()})]
        if self.positive is not None:
            rule = "the one that sorts last of the two, unless --positive names the other"
            lines.append(f"binary_f1 is that of the label '{self.positive}' ({rule})")
        if self.rarity.weights is not None:
            weights = zip(self.names, self.rarity.weights, strict=True)
            lines.append("class weights: " + listed({name: f"{weight:.3g}" for name, weight in weights}))
        if self.sampling != "natural":
            found = np.array([counts.get(name, 0) for name in self.names])
            shares = zip(self.names, quotas(found, int(found.sum()), self.sampling), strict=True)
            lines.append("rows of an epoch by label: " + listed({name: f"{share:,}" for name, share in shares}))
        if self.negative is not None:
            lines.append(f"micro_f1 is over all labels but '{self.negative}'")
        return lines

    def config(self) -> dict[str, Any]:
        return config_labels(self.names)

    def facts(self) -> dict[str, Any]:
        temperature = {"temperature": self.temperature, "temperature_in_weights": self.in_weights}
        fitted = temperature | ({} if self.positive is None else {"threshold": self.threshold})
        classes = {"pairs": self.pairs, "positive": self.positive, "negative": self.negative}
        return {**classes, **fitted, "window_overlap": self.overlap}

    def shown(self, record: Record) -> str:
        return class_name(str(record.label))

    def answers_of(self, scores: Floats, records: Sequence[Record], sequences: Sequences) -> list[Answer]:
        """{"label", "score", "scores"} for each row: its class, that class's probability, and every class's."""
        logits = window_means(scores, sequences)
        return [
            {
                "label": self.names[place],
                "score": float(row[place]),
                "scores": {name: float(each) for name, each in zip(self.names, row, strict=True)},
            }
            for place, row in zip(self._predicted(logits), self._probabilities(logits), strict=True)
        ]


def _of_list(record: Record) -> BertsmithError:
    """For a row with a list of labels among rows with one."""
    listed = counted(len(record.label), "label")
    what = f"this row has a list of {listed}, and most training rows have one label each"
    return BertsmithError(what, record.where, "write lists in all rows, or in none")


def _positive(names: Sequence[str], settings: FinetuneSettings) -> str | None:
    positive = settings.positive
    if positive is None:
        if settings.metric == _BINARY and len(names) != 2:
            raise BertsmithError(f"binary_f1 with {len(names)} labels", "metric", "use macro_f1, accuracy or matthews")
        return names[-1] if len(names) == 2 else None
    if class_name(positive.strip()) not in names:
        raise BertsmithError(f"no training row has the label '{positive}'", "positive", nearest(positive, names))
    if len(names) != 2:
        raise BertsmithError(f"a positive label with {len(names)} labels", "positive", "use it with two labels")
    return class_name(positive.strip())


def _negative(names: Sequence[str], settings: FinetuneSettings) -> str | None:
    """The class that `micro_f1` leaves out. Raises BertsmithError where it is not one, or is wanted and not named."""
    if settings.negative_label is None:
        if settings.metric == _MICRO:
            raise BertsmithError("micro_f1 leaves one label out", "metric", "name that with --negative-label")
        return None
    found = class_name(settings.negative_label.strip())
    if found not in names:
        raise BertsmithError(f"no training row has the label '{found}'", "negative_label", nearest(found, names))
    return found
