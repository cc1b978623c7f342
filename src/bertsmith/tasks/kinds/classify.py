"""Classification of one or two texts: the model, its labels and its answers.

Legend: N records, S sequences of a batch, C classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.model.config import BertConfig
from bertsmith.model.encoder import Encoder
from bertsmith.model.linear import Linear
from bertsmith.model.losses import LossSum, cross_entropy_sum
from bertsmith.tasks.reading.labels import class_name, class_names
from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.scoring.classes import CLASS_METRICS, binary_f1
from bertsmith.tasks.sequences import Inputs, Sequences, row_means, unit_means
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Answer, Examples, Floats, FolderFacts, Task

Ints = NDArray[np.int64]
_BINARY = "binary_f1"


class Classifier(nn.Module):
    """An encoder, dropout on its pooled output, and a linear map to C numbers (Google's run_classifier.py).

    The dropout is the config's `hidden_dropout_prob`, as in transformers.
    """

    def __init__(self, config: BertConfig, outputs: int, compute: torch.dtype | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, compute)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = Linear(config.hidden_size, outputs)

    def forward(self, inputs: Inputs) -> Tensor:
        """The numbers of each sequence, of classes those before the softmax: [S, C]."""
        hidden = self.encoder(inputs.input_ids, inputs.token_type_ids, inputs.position_ids, inputs.packed)
        pooled = self.encoder.pool(hidden, inputs.packed)[: inputs.asked.sequences]
        logits: Tensor = self.classifier(self.dropout(pooled))
        return logits


@dataclass(frozen=True)
class Classify(Task):
    """names: of the C classes, in the order of the model's outputs. pairs: whether rows have two texts. positive: the
    class that `binary_f1` scores, where there are two. counts: training rows of each class, the most frequent first."""

    kind = "classify"
    architecture = "BertForSequenceClassification"
    architectures = (architecture,)
    head = "classifier"
    metrics = ("accuracy", "macro_f1", _BINARY, "matthews")

    names: tuple[str, ...]
    pairs: bool | None = None
    positive: str | None = None
    counts: Mapping[str, int] | None = None
    overlap: int | None = None

    @classmethod
    def reads(cls, config: Mapping[str, Any]) -> bool:
        return config.get("problem_type") != "regression"

    @classmethod
    def of_records(cls, records: Sequence[Record], settings: FinetuneSettings) -> Self:
        labels = [str(record.label) for record in records]
        names = class_names(labels, records[0].where, settings.many_labels)
        positive = settings.positive
        if positive is None:
            positive = names[-1] if len(names) == 2 else None
        elif class_name(positive.strip()) not in names:
            raise BertsmithError(f"no training row has the label '{positive}'", "positive", nearest(positive, names))
        elif len(names) != 2:
            raise BertsmithError(f"a positive label with {len(names)} labels", "positive", "use it with two labels")
        else:
            positive = class_name(positive.strip())
        if settings.metric == _BINARY and len(names) != 2:
            raise BertsmithError(f"binary_f1 with {len(names)} labels", "metric", "use macro_f1, accuracy or matthews")
        counts = Counter(map(class_name, labels))
        overlap = settings.window_overlap if settings.windows else None
        return cls(tuple(names), records[0].text_b is not None, positive, dict(counts.most_common()), overlap)

    @classmethod
    def of_folder(cls, facts: FolderFacts) -> Self:
        names = names_of_config(facts.config)
        kind = facts.config.get("problem_type") or "single_label_classification"
        if kind != "single_label_classification" or len(names) < 2:
            fix = "use a classifier of one label a row, out of two or more"
            raise BertsmithError(f"problem_type is {kind} with {len(names)} label(s)", "config.json", fix)
        task = facts.task
        return cls(tuple(names), task.get("pairs"), task.get("positive"), overlap=task.get("window_overlap"))

    def build(self, config: BertConfig, compute: torch.dtype | None) -> Classifier:
        return Classifier(config, len(self.names), compute)

    def targets(self, records: Sequence[Record], sequences: Sequences) -> Ints:
        places = {name: place for place, name in enumerate(self.names)}
        for record in records:
            label = str(record.label)
            if class_name(label) not in places:
                what = f"the training rows have no label '{label}'"
                raise BertsmithError(what, record.where, nearest(label, self.names))
        return np.array([places[class_name(str(record.label))] for record in records], dtype=np.int64)

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> LossSum:
        return cross_entropy_sum(unit_means(model(inputs), inputs), targets)

    def evaluate(self, scores: Floats, examples: Examples) -> dict[str, float]:
        return self._metrics(row_means(scores, examples.sequences).argmax(1), truths_of(examples))

    def _metrics(self, predicted: Ints, targets: Ints) -> dict[str, float]:
        found = {name: metric(predicted, targets) for name, metric in CLASS_METRICS.items()}
        if self.positive is not None:
            found[_BINARY] = binary_f1(predicted, targets, self.names.index(self.positive))
        return found

    def baseline(self, metric: str, examples: Examples) -> float:
        most_frequent = self.names.index(next(iter(self.counts or self.names)))
        targets = truths_of(examples)
        return self._metrics(np.full_like(targets, most_frequent), targets)[metric]

    def description(self) -> list[str]:
        counts = self.counts or {}
        lines = ["train rows by label: " + ", ".join(f"{name} {count:,}" for name, count in counts.items())]
        if self.positive is not None:
            rule = "the one that sorts last of the two, unless --positive names the other"
            lines.append(f"binary_f1 is that of the label '{self.positive}' ({rule})")
        return lines

    def config(self) -> dict[str, Any]:
        return config_labels(self.names)

    def facts(self) -> dict[str, Any]:
        return {"pairs": self.pairs, "positive": self.positive, "window_overlap": self.overlap}

    def shown(self, record: Record) -> str:
        return class_name(str(record.label))

    def answers_of(self, scores: Floats, records: Sequence[Record], sequences: Sequences) -> list[Answer]:
        """{"label", "score", "scores"} for each row: the likeliest class, its probability, and every class's."""
        logits = row_means(scores, sequences).astype(np.float64)
        probabilities = np.exp(logits - logits.max(1, keepdims=True))
        probabilities /= probabilities.sum(1, keepdims=True)
        return [
            {
                "label": self.names[row.argmax()],
                "score": float(row.max()),
                "scores": {name: float(each) for name, each in zip(self.names, row, strict=True)},
            }
            for row in probabilities
        ]

    def cells(self, answer: Answer) -> dict[str, str]:
        return {"predicted_label": answer["label"], "predicted_score": f"{answer['score']:.6f}"}


def config_labels(names: Sequence[str]) -> dict[str, Any]:
    """The labels as a Hugging Face config.json has them."""
    return {
        "id2label": {str(place): name for place, name in enumerate(names)},
        "label2id": {name: place for place, name in enumerate(names)},
        "problem_type": "single_label_classification",
    }


def names_of_config(config: Mapping[str, Any]) -> list[str]:
    """The labels of a config.json, in the order of their ids. transformers leaves them out for exactly two, which it
    then calls LABEL_0 and LABEL_1. Raises BertsmithError where they are not numbered from 0."""
    named = config.get("id2label")
    if named is None:
        return ["LABEL_0", "LABEL_1"]
    if not isinstance(named, dict) or sorted(named) != sorted(str(place) for place in range(len(named))):
        raise BertsmithError("the labels (id2label) are not numbered from 0", "config.json", "fine-tune again")
    return [str(named[str(place)]) for place in range(len(named))]


def truths_of(examples: Examples) -> Ints:
    """The class of each record: int64[N]."""
    return np.asarray(examples.targets[np.arange(len(examples.targets))], dtype=np.int64)
