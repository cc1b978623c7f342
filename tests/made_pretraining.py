"""Small fresh models for the tests that take training steps."""

from __future__ import annotations

import torch

from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel


def fresh_model(
    compute: torch.dtype | None = None, *, dropout: float = 0.0, deviation: float = 0.02, seed: int = 1, **shape: int
) -> PretrainingModel:
    """A model in train mode with two heads and weights of this deviation. shape: fields of a `BertConfig`."""
    dropouts = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    model = PretrainingModel(BertConfig(**shape, **dropouts, num_attention_heads=2), compute)
    initialise(model, deviation, seed)
    return model.train()
