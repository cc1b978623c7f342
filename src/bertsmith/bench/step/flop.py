"""What a pre-training step has to compute, whoever computes it."""

from __future__ import annotations

import numpy as np

from bertsmith.batches.packing import PretrainBatch
from bertsmith.model.config import BertConfig

FORMULA = (
    "6 for every weight of the layers that a token passes (2 forward, 4 backward), 12 x hidden x layers x length^2 for "
    "attention within each sequence, 6 for every weight of the word head that a masked token passes and of the pooler "
    "and the pair head that a sequence passes; no padding, nothing twice, no embedding, no pointwise work"
)


def flop_of_step(config: BertConfig, batch: PretrainBatch) -> float:
    """Floating-point operations of the matrix products that a step over this batch needs, forward and backward.

    By `FORMULA`. What it leaves out: looking embeddings up, everything pointwise, softmax, dropout, the optimizer.
    """
    hidden, layers = config.hidden_size, config.num_hidden_layers
    weights = layers * (4 * hidden**2 + 2 * hidden * config.intermediate_size)
    lengths = batch.layout.lengths.astype(np.float64)
    attention = 12 * hidden * layers * float((lengths**2).sum())
    masked = 6 * len(batch.masked_positions) * (hidden**2 + hidden * config.vocab_size)
    pooled = 6 * batch.layout.sequences * (hidden**2 + 2 * hidden)
    return 6 * weights * batch.layout.tokens + attention + masked + pooled
