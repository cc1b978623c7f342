"""Which parameters have weight decay."""

from __future__ import annotations

from typing import Any

from torch import nn


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups for an optimizer: matrices (weights, embeddings) with weight decay; vectors without.

    The vectors of a BERT are its biases and the weights and biases of its LayerNorms, which neither Google nor NVIDIA
    decays. Every trained parameter is in exactly one group; a tensor that two modules share counts once; an empty group
    is omitted.
    """
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
