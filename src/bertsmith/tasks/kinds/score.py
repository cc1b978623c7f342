"""One score for each row, from a model with one output that was not trained on numbers: how well two texts fit, as
rerankers give it.

Such folders are written by sentence-transformers' CrossEncoder, which says in one of two files what becomes of the
output: a sigmoid unless it names another function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from bertsmith.base.errors import BertsmithError
from bertsmith.model.config import BertConfig
from bertsmith.tasks.kinds.pooled import Classifier, outputs_of
from bertsmith.tasks.reading.records import Columns, Record
from bertsmith.tasks.scoring.calibration import yes_probabilities
from bertsmith.tasks.sequences import Sequences
from bertsmith.tasks.task import Answer, Answering, Floats, FolderFacts, Runner
from bertsmith.tokens.tokenizer import truncated_lengths

_ACTIVATIONS = {"Sigmoid": True, "Identity": False}


@dataclass(frozen=True)
class Score(Answering):
    """sigmoid: whether the score is the sigmoid of the output, or the output itself. pairs: true for a folder of
    sentence-transformers, and not known elsewhere."""

    name = "score"
    architectures = ("BertForSequenceClassification",)

    sigmoid: bool = True
    pairs: bool | None = None

    @classmethod
    def reads(cls, config: Mapping[str, Any]) -> bool:
        """One output; and where the folder calls it a number, only if it says what becomes of it."""
        is_one = outputs_of(config, usual=2) == 1
        return is_one and (config.get("problem_type") != "regression" or _activation(config) is not None)

    @classmethod
    def prompts(cls, columns: Columns) -> list[str]:
        """Two texts, of which the second may stay empty where the folder does not say that it reads pairs."""
        return [columns.text, columns.text_b]

    @classmethod
    def of_folder(cls, facts: FolderFacts) -> Self:
        named = facts.sentence.get("activation_fn") or _activation(facts.config)
        name = "Sigmoid" if named is None else str(named).rpartition(".")[2]
        if name not in _ACTIVATIONS:
            what = f"its activation is {named}; known here are {' and '.join(_ACTIVATIONS)}"
            raise BertsmithError(what, "config.json", "use sentence-transformers for this model")
        if facts.sentence.get("default_prompt_name") is not None:
            what = "it puts a prompt before every pair, which is not done here"
            raise BertsmithError(what, "config_sentence_transformers.json", "use sentence-transformers for this model")
        return cls(_ACTIVATIONS[name], True if facts.sentence or named else None)

    def build(self, config: BertConfig, compute: torch.dtype | None) -> Classifier:
        return Classifier(config, 1, compute)

    @staticmethod
    def cut(first: int, second: int, room: int) -> tuple[int, int]:
        """An odd token of two equal halves is the second text's, as in Hugging Face's tokenizers."""
        if first <= second and first > room // 2:
            return room // 2, room - room // 2
        return truncated_lengths(first, second, room)

    def outputs(self, model: nn.Module, sequences: Sequences, runner: Runner) -> list[Floats]:
        """float32[1] each."""
        return list(runner.scores(model, sequences))

    def answers_from(self, outputs: Sequence[Any], records: Sequence[Record], sequences: Sequences) -> list[Answer]:
        """{"score", "logit"} for each row: logit is the model's output."""
        logits = np.stack(outputs)[:, 0].astype(np.float64)
        scores = yes_probabilities(logits) if self.sigmoid else logits
        return [{"score": float(score), "logit": float(logit)} for score, logit in zip(scores, logits, strict=True)]


def _activation(config: Mapping[str, Any]) -> Any:
    """The activation that a config.json names; None where it names none."""
    named = config.get("sentence_transformers")
    if isinstance(named, Mapping):
        return named.get("activation_fn")
    return config.get("sbert_ce_default_activation_function")
