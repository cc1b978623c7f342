"""Which parameters decay."""

from __future__ import annotations

from typing import Any

from torch import nn


def parameter_groups(module: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups for an optimizer: matrices (weights, embeddings) with weight decay; vectors without.

    The vectors of a BERT are its biases and the gains and shifts of its LayerNorms, which neither Google nor NVIDIA
    decays. Every parameter that is trained is in one group, once; a tensor that two modules share counts once; a group
    without parameters is left out.
    """
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    groups = [
        {"params": [parameter for parameter in trained if parameter.ndim > 1], "weight_decay": weight_decay},
        {"params": [parameter for parameter in trained if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]
