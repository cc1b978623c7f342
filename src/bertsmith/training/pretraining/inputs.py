"""A packed micro-batch of pre-training as the model's tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from bertsmith.base.layout import IGNORED_LABEL
from bertsmith.batches.packing import PretrainBatch, fill
from bertsmith.model.attention.packed import Packed
from bertsmith.model.config import BertConfig
from bertsmith.model.flop import step_flop
from bertsmith.model.pretraining import PretrainInputs


def flop_of(config: BertConfig, batch: PretrainBatch) -> float:
    """Floating-point operations of a micro-batch, forward and backward; what fills it up is not counted."""
    pairs = int(np.count_nonzero(batch.next_sentence_labels != IGNORED_LABEL))
    masked = int(np.count_nonzero(batch.masked_labels != IGNORED_LABEL))
    squared_lengths = float((batch.layout.lengths[: batch.sequences].astype(np.float64) ** 2).sum())
    return step_flop(config, batch.tokens, squared_lengths, masked, pairs)


def to_inputs(batch: PretrainBatch, device: torch.device) -> PretrainInputs:
    """A packed batch of numpy arrays as the model's tensors, filled up to a round size on a CPU."""
    if device.type == "cpu":
        batch = fill(batch)

    def tensor(name: str) -> Tensor:
        return torch.from_numpy(getattr(batch, name)).to(device, torch.int64, non_blocking=True)

    return PretrainInputs(
        input_ids=tensor("input_ids"),
        token_type_ids=tensor("token_type_ids"),
        position_ids=tensor("position_ids"),
        packed=Packed(batch.layout, device),
        masked_positions=tensor("masked_positions"),
        masked_labels=tensor("masked_labels"),
        next_sentence_labels=tensor("next_sentence_labels"),
    )
