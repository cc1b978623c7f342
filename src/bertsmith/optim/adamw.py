"""AdamW (Loshchilov and Hutter, 2019) behind the same surface as LAMB."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor

from bertsmith.optim.clipped import Clip, ClippedOptimizer
from bertsmith.optim.loss_scale import LossScale


class AdamW(ClippedOptimizer):
    """AdamW over fp32 masters, with clipping by global norm and a guard against non-finite gradients.

    groups: of `parameter_groups`. bias_correction=False is the Adam of Google's BERT. The learning rate is set before
    every step by `set_learning_rate`.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-6,
        max_gradient_norm: float = 1.0,
        bias_correction: bool = True,
        loss_scale: LossScale | None = None,
    ) -> None:
        super().__init__(
            groups,
            betas=betas,
            epsilon=epsilon,
            max_gradient_norm=max_gradient_norm,
            bias_correction=bias_correction,
            loss_scale=loss_scale,
        )

    def _update(self, group: dict[str, Any], parameters: list[Tensor], clip: Clip) -> None:
        self._adam(group, parameters, parameters, clip, rate=group["lr"], decay=group["weight_decay"])
