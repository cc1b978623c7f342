"""LAMB as in NVIDIA's BERT training (NVLAMB: `multi_tensor_lamb.cu`): Adam's direction, scaled per tensor.

    g = g / max(1, N / max_gradient_norm), N the global norm of all gradients
    m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
    u = (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + epsilon) + weight_decay w
    w = w - rate r u, where r = |w| / |u| if both are above zero, else 1

NVIDIA's code applies r only to tensors with weight decay; the paper (You et al., 2020) applies it to all.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

import torch
from torch import Tensor

from bertsmith.optim.clipped import Clip, ClippedOptimizer
from bertsmith.optim.loss_scale import LossScale
from bertsmith.optim.norms import local_part, tensor_norms, whole_norms

TrustRatio = Literal["decayed", "all", "none"]


class Lamb(ClippedOptimizer):
    """LAMB over fp32 masters, with clipping by global norm and a guard against non-finite gradients.

    groups: from `parameter_groups`. trust_ratio: which tensors are scaled by r, those of groups with weight decay
    ("decayed"), "all" or "none". The learning rate is set before every step by `set_learning_rate`.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-6,
        max_gradient_norm: float = 1.0,
        trust_ratio: TrustRatio = "decayed",
        bias_correction: bool = True,
        loss_scale: LossScale | None = None,
    ) -> None:
        self.trust_ratio = trust_ratio
        super().__init__(
            groups,
            betas=betas,
            epsilon=epsilon,
            max_gradient_norm=max_gradient_norm,
            bias_correction=bias_correction,
            loss_scale=loss_scale,
        )

    def _update(self, group: dict[str, Any], parameters: list[Tensor], clip: Clip) -> None:
        decay = group["weight_decay"]
        has_ratio = self.trust_ratio == "all" or bool(self.trust_ratio == "decayed" and decay)

        def norms_of(squares: Tensor) -> Tensor:
            return whole_norms(parameters, squares).float()

        if self._moved(group, parameters, clip, norms_of if has_ratio else None):
            return
        updates = [torch.zeros_like(parameter) for parameter in parameters]
        # Starting from zero, a rate of -1 puts Adam's direction itself into `updates`.
        self._adam(group, updates, parameters, clip, rate=-torch.ones_like(group["lr"]), decay=0.0)
        weights, moves = [local_part(each) for each in parameters], [local_part(each) for each in updates]
        if decay:
            torch._foreach_add_(moves, weights, alpha=decay)
        scale = -group["lr"] * clip.finite
        if has_ratio:
            scales = scale * _trust_ratios(*tensor_norms([*parameters, *updates]).chunk(2))
        else:
            scales = scale.expand(len(parameters))
        torch._foreach_addcmul_(weights, moves, list(scales.unbind()))


def _trust_ratios(weights: Tensor, updates: Tensor) -> Tensor:
    """|w| / |u| where both norms are above zero, else 1. All [n]."""
    both = (weights > 0) & (updates > 0)
    return torch.where(both, weights / torch.where(both, updates, 1.0), 1.0)
