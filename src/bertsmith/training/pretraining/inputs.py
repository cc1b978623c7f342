"""A packed micro-batch of pre-training as the model's tensors."""

from __future__ import annotations

import torch
from torch import Tensor

from bertsmith.batches.packing import PretrainBatch, fill
from bertsmith.model.attention.packed import Packed
from bertsmith.model.pretraining import PretrainInputs


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
