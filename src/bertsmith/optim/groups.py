"""Which parameters have weight decay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def parameter_groups(
    module: nn.Module, weight_decay: float, rate_share: Callable[[str], float] = lambda _: 1.0
) -> list[dict[str, Any]]:
    """Groups for an optimizer: matrices (weights, embeddings) with weight decay; vectors without.

    The vectors of a BERT are its biases and the weights and biases of its LayerNorms, which neither Google nor NVIDIA
    decays. Every trained parameter is in exactly one group; a tensor that two modules share counts once; an empty group
    is omitted. rate_share: the learning rate of a parameter, by its name, as a share of the run's; parameters of one
    share have groups of their own.
    """
    trained = {name: each for name, each in module.named_parameters() if each.requires_grad}
    shares = {name: rate_share(name) for name in trained}
    return [
        {"params": members, "weight_decay": weight_decay if matrices else 0.0, "rate_share": share}
        for share in dict.fromkeys(shares.values())
        for matrices in (True, False)
        if (
            members := [each for name, each in trained.items() if shares[name] == share and (each.ndim > 1) == matrices]
        )
    ]
