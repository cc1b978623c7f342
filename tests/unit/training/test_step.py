"""What a step counts on the way."""

from __future__ import annotations

import numpy as np
import torch

from bertsmith.base.layout import Layout
from bertsmith.batches.packing import PretrainBatch
from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.training.step import StepSums, add_losses, to_inputs

CPU = torch.device("cpu")


def ragged_batch() -> PretrainBatch:
    layout = Layout.from_lengths([30, 17, 29, 5])
    ids = np.arange(layout.tokens) % 20
    types = np.zeros(layout.tokens, np.int64)
    at = np.array([3, 40, 50])
    return PretrainBatch(ids, types, layout.positions, layout, at, ids[at], np.array([0, 1, 1, 0]))


def test_the_slots_counted_are_those_that_attention_worked_on() -> None:
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    model = PretrainingModel(config)
    initialise(model, 0.02, seed=0)
    sums = StepSums.zero(CPU)
    batch = ragged_batch()
    add_losses(model, batch, CPU, sums)
    assert sums.tokens == 81
    assert sums.attention_places == len(to_inputs(batch, CPU).packed.layout.blocks.slots) > 81
    assert "blocks" not in vars(batch.layout), "the blocks are worked out once, for attention"
