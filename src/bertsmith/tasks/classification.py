"""Classification of one or two texts: the model, and what it needs of labels and scores.

Legend: N records, S sequences of a batch, C classes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.model.config import BertConfig
from bertsmith.model.encoder import Encoder
from bertsmith.model.linear import Linear
from bertsmith.model.losses import LossSum, cross_entropy_sum
from bertsmith.tasks.records import Record
from bertsmith.tasks.sequences import Inputs, Sequences, by_length, pack

Floats = NDArray[np.float32]

ARCHITECTURE = "BertForSequenceClassification"
HEAD = "classifier"


class Classifier(nn.Module):
    """An encoder, dropout on its pooled output, and a linear map to C classes (Google's run_classifier.py).

    The dropout is the config's `hidden_dropout_prob`, as transformers has it.
    """

    def __init__(self, config: BertConfig, classes: int, compute: torch.dtype | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config, compute)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.classifier = Linear(config.hidden_size, classes)

    def forward(self, inputs: Inputs) -> Tensor:
        """Scores of the classes before the softmax: [S, C]."""
        hidden = self.encoder(inputs.input_ids, inputs.token_type_ids, inputs.position_ids, inputs.packed)
        pooled = self.encoder.pool(hidden, inputs.packed)[: inputs.asked.sequences]
        logits: Tensor = self.classifier(self.dropout(pooled))
        return logits

    def loss(self, inputs: Inputs, labels: Tensor) -> LossSum:
        """Cross entropy against int64[S], summed, with its count."""
        return cross_entropy_sum(self(inputs), labels)


@torch.no_grad()
def class_scores(model: Classifier, sequences: Sequences, device: torch.device, budget_tokens: int) -> Floats:
    """Scores before the softmax of all sequences, in their order: float32[N, C]. The model must be in eval mode."""
    scores = np.zeros((len(sequences.ids), model.classifier.out_features), dtype=np.float32)
    for members in by_length(sequences, budget_tokens):
        scores[members] = model(pack(sequences, members, device)).float().cpu().numpy()
    return scores


def label_names(records: Sequence[Record]) -> list[str]:
    """The labels of the records, in the order of their numbers if they are whole numbers, else of the alphabet.

    Raises BertsmithError where there are fewer than two.
    """
    names = {record.label for record in records if record.label is not None}
    if len(names) < 2:
        raise BertsmithError(
            f"there is {len(names)} label, and a classifier needs two", records[0].where, "check the label's column"
        )
    numbers = all(name.lstrip("-").isdecimal() for name in names)
    return sorted(names, key=(lambda name: (int(name), name)) if numbers else None)


def label_ids(records: Sequence[Record], names: Sequence[str]) -> NDArray[np.int64]:
    """int64[N]: the place of each record's label among `names`. Raises BertsmithError at a label that is not there."""
    places = {name: place for place, name in enumerate(names)}
    for record in records:
        if record.label not in places:
            raise BertsmithError(
                f"the training rows have no label '{record.label}'", record.where, nearest(str(record.label), names)
            )
    return np.array([places[str(record.label)] for record in records], dtype=np.int64)


def class_counts(records: Sequence[Record]) -> dict[str, int]:
    """Rows of each label, the most frequent first."""
    return dict(Counter(str(record.label) for record in records).most_common())


def config_labels(names: Sequence[str]) -> dict[str, Any]:
    """The labels as a Hugging Face config.json has them."""
    return {
        "id2label": {str(place): name for place, name in enumerate(names)},
        "label2id": {name: place for place, name in enumerate(names)},
        "problem_type": "single_label_classification",
    }


def names_of_config(config: Mapping[str, Any]) -> list[str]:
    """The labels of a config.json, in the order of their ids; BertsmithError where it has none."""
    named = config.get("id2label")
    if not isinstance(named, dict) or sorted(named) != sorted(str(place) for place in range(len(named))):
        raise BertsmithError(
            "the labels (id2label) are missing or not numbered from 0", "config.json", "fine-tune again"
        )
    return [str(named[str(place)]) for place in range(len(named))]
