"""Which class of `transformers` a checkpoint is, by its heads, by what its config names, and by what it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import log_choice
from bertsmith.model.config import label_maps
from bertsmith.weights.names import HEADS, POOLER, part_of

SEQUENCES, TOKENS, CHOICES = (
    "BertForSequenceClassification", "BertForTokenClassification", "BertForMultipleChoice",
)  # fmt: skip
_CLASSIFIERS = (SEQUENCES, TOKENS, CHOICES)
"""The classes whose head is called `classifier`: tensors alone do not tell them apart."""


def architecture_of(tensors: Mapping[str, Tensor], config: Any, where: Path) -> tuple[str, dict[str, Any]]:
    """The class, and what its config.json says of labels.

    tensors: by our names. config: the values of the checkpoint's config file. Says why a classifier is the one that it
    is taken for. Raises BertsmithError for a multiple-choice model of several scores.
    """
    heads = {part_of(name) for name in tensors} & set(HEADS)
    if "classifier" in heads:
        return _classifier(tensors, config, where)
    if "qa_outputs" in heads:
        return "BertForQuestionAnswering", {}
    if heads >= {"masked_head", "next_sentence"}:
        return "BertForPreTraining", {}
    if heads:
        return ("BertForMaskedLM" if "masked_head" in heads else "BertForNextSentencePrediction"), {}
    return "BertModel", {}


def named_classifier(config: Any) -> str | None:
    """The class with a classifier that a config names; None where it names none."""
    named = config.get("architectures") if isinstance(config, dict) else None
    return next((each for each in named if each in _CLASSIFIERS), None) if isinstance(named, list) else None


def _classifier(tensors: Mapping[str, Tensor], config: Any, where: Path) -> tuple[str, dict[str, Any]]:
    count = len(tensors["classifier.bias"])
    found = named_classifier(config)
    other = f"where it is another, name it in architectures of the config: {', '.join(_CLASSIFIERS)}"
    if found is not None:
        reason = "its config names it"
    elif not any(name.startswith(f"{POOLER}.") for name in tensors):
        found, reason = TOKENS, f"it has no pooler, without which only tokens are classified; {other}"
    elif count == 1:
        found, reason = CHOICES, f"its classifier gives one score; {other}"
    else:
        found, reason = SEQUENCES, f"it has a pooler and a classifier of {count} classes; {other}"
    log_choice(f"class of {where}", found, reason)
    if found == CHOICES:
        if count != 1:
            fix = f"name the class that it is in architectures of the config: {SEQUENCES} or {TOKENS}"
            raise BertsmithError(f"a classifier of {count} classes is no {CHOICES}, which gives one score", where, fix)
        return found, {}
    names = [f"LABEL_{number}" for number in range(count)]
    log_choice(f"labels of {where}", ", ".join(names), "a checkpoint does not name them; config.json is the place to")
    return found, label_maps(names)
