"""AdamW (Loshchilov and Hutter, 2019) with the same interface as LAMB."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from bertsmith.optim.clipped import Clip, ClippedOptimizer


class AdamW(ClippedOptimizer):
    """AdamW over fp32 masters, with clipping by global norm and a guard against non-finite gradients.

    groups: from `parameter_groups`. bias_correction=False is the Adam of Google's BERT. The learning rate is set before
    every step by `set_learning_rate`.
    """

    def _update(self, group: dict[str, Any], parameters: list[Tensor], clip: Clip) -> None:
        if not self._moved(group, parameters, clip):
            self._adam(group, parameters, parameters, clip, rate=group["lr"], decay=group["weight_decay"])
