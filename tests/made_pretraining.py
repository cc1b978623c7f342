"""Small fresh models and batches for the tests that take training steps."""

from __future__ import annotations

import numpy as np
import torch

from bertsmith.base.layout import Layout
from bertsmith.batches.packing import PretrainBatch
from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel


def fresh_model(
    compute: torch.dtype | None = None,
    *,
    dropout: float = 0.0,
    deviation: float = 0.02,
    seed: int = 1,
    **shape: int | str,
) -> PretrainingModel:
    """A model in train mode with two heads and weights of this deviation. shape: fields of a `BertConfig`."""
    dropouts = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    model = PretrainingModel(BertConfig(**shape, **dropouts, num_attention_heads=2), compute)
    initialise(model, deviation, seed)
    return model.train()


def batch_of(lengths: list[int], seed: int) -> PretrainBatch:
    """Random tokens, of 300 pieces, about every sixth masked."""
    draw, layout = np.random.default_rng(seed), Layout.from_lengths(lengths)
    masked = np.flatnonzero(draw.random(layout.tokens) < 0.16)
    return PretrainBatch(
        input_ids=draw.integers(5, 300, layout.tokens),
        token_type_ids=draw.integers(0, 2, layout.tokens),
        position_ids=layout.positions,
        layout=layout,
        masked_positions=masked,
        masked_labels=draw.integers(5, 300, len(masked)),
        next_sentence_labels=draw.integers(0, 2, len(lengths)),
    )
