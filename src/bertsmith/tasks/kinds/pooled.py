"""Models of one linear map on the pooled output, and what their folders say: labels, and numbers fitted to dev rows.

Legend: S sequences of a batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.log import first_of, log_choice
from bertsmith.model.config import BertConfig, label_maps
from bertsmith.model.encoder import Encoder
from bertsmith.model.linear import Linear
from bertsmith.tasks.reading.labels import class_name
from bertsmith.tasks.sequences import Inputs, all_of
from bertsmith.tasks.task import Examples

SINGLE, SEVERAL = "single_label_classification", "multi_label_classification"
_LISTED = 40


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
        """The numbers of each sequence, of classes those before the softmax: fp32[S, C]."""
        pooled = self.encoder.pooled(inputs.input_ids, inputs.token_type_ids, inputs.position_ids, inputs.packed)
        pooled = pooled[: inputs.asked.sequences]
        # In bf16 a number of 70 would be told in steps of 1/2, and many rows, or choices of one, would be level.
        logits: Tensor = self.classifier(self.dropout(pooled).float())
        return logits


def config_labels(names: Sequence[str], problem: str = SINGLE) -> dict[str, Any]:
    """The labels as a Hugging Face config.json has them."""
    return {**label_maps(names), "problem_type": problem}


def names_of_config(config: Mapping[str, Any]) -> list[str]:
    """The labels of a config.json, in the order of their ids. Without names they are called LABEL_0 and so on, as in
    transformers: as many as `num_labels` says, or two, for which transformers writes neither. Raises BertsmithError
    where they are not numbered from 0, and where two are equal: answers are named by them."""
    named = config.get("id2label")
    if named is None:
        count = config.get("num_labels", 2)
        if type(count) is not int or count < 1:
            fix = "give the number of labels, or their names in id2label"
            raise BertsmithError(f"num_labels is {count!r}", "config.json", fix)
        if "num_labels" in config:
            log_choice("labels", f"LABEL_0 to LABEL_{count - 1}", "config.json gives their number and no names")
        return [f"LABEL_{place}" for place in range(count)]
    if not isinstance(named, dict) or sorted(named) != sorted(str(place) for place in range(len(named))):
        raise BertsmithError("the labels (id2label) are not numbered from 0", "config.json", "fine-tune again")
    names = [str(named[str(place)]) for place in range(len(named))]
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        what = f"{count} classes of this model have the name '{name}' (id2label)"
        raise BertsmithError(what, "config.json", "give every class a name of its own, in id2label and in label2id")
    return names


def outputs_of(config: Mapping[str, Any], usual: int) -> object:
    """How many numbers a model of this config.json gives a row; `usual` where it says nothing of them, and 0 where its
    labels are no object, which `names_of_config` refuses."""
    named = config.get("id2label")
    if not isinstance(named, dict | None):
        return 0
    return len(named or ()) or config.get("num_labels", usual)


def listed(figures: Mapping[str, str]) -> str:
    """A figure of each label, for a line of the log: of many labels those that come first."""
    return first_of((f"{name} ({figure})" for name, figure in figures.items()), _LISTED)


def places_of(labels: Sequence[tuple[str, str]], names: Sequence[str], several: bool = False) -> list[int]:
    """The places of labels among the names of classes. labels: each with the name of its row. several: whether a row
    may have more than one. Raises BertsmithError that names those which the training rows lack."""
    places = {name: place for place, name in enumerate(names)}
    found = [places.get(class_name(label), -1) for label, _ in labels]
    absent: dict[str, str] = {}
    for (label, where), place in zip(labels, found, strict=True):
        if place < 0:
            absent.setdefault(label, where)
    if absent:
        (first, where), *others = absent.items()
        also = f", nor {first_of(repr(label) for label, _ in others)}" if others else ""
        fix = f"{nearest(first, places)} (--labels in training names all labels, those that no training row has too)"
        if several and (mark := _separator(first, places)):
            fix = f"if these are several labels, name what separates them: --columns.label-separator '{mark}'"
        raise BertsmithError(f"the training rows have no label '{first}'{also}", where, fix)
    return found


def _separator(label: str, known: Container[str]) -> str | None:
    """The mark that divides a label into known ones, if there is any."""
    for mark in (each for each in label if not each.isalnum()):
        parts = [part.strip() for part in label.split(mark) if part.strip()]
        if len(parts) > 1 and all(class_name(part) in known for part in parts):
            return mark
    return None


def fitted_number(task: Mapping[str, Any], name: str, default: float, zero: bool = False) -> float:
    """A number above 0 in task.json, or with `zero` one from 0; the default where it has none. Raises BertsmithError
    for anything else."""
    value = task.get(name, default)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 <= value < float("inf") or (value == 0 and not zero):
        what = f"{name} is {value!r}, not a number {'from' if zero else 'above'} 0"
        raise BertsmithError(what, "task.json", "fine-tune again")
    return float(value)


def said_of(task: Mapping[str, Any], name: str) -> bool:
    """Whether task.json says so. Raises BertsmithError for what is neither true nor false."""
    value = task.get(name, False)
    if not isinstance(value, bool):
        raise BertsmithError(f"{name} is {value!r}, neither true nor false", "task.json", "fine-tune again")
    return value


def truths_of(examples: Examples) -> NDArray[np.int64]:
    """The class of each record, int64[N], or whether it has each label, [N, L]."""
    return np.asarray(all_of(examples.targets), dtype=np.int64)
