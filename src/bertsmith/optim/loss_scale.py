"""The dynamic loss scale of fp16: kept on the device, and never read by the host between log lines."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

# So many labels in a step leave gradients in the middle of fp16's range.
_USUAL_LABELS = 256


class LossScale:
    """A factor on the loss that moves small gradients into the range of fp16 (Micikevicius et al., 2018).

    It doubles after `grow_every` updates in a row without an overflow, unless that exceeds `ceiling`. An overflow
    halves it, and the update is skipped and counted; halving does not help against one at `floor` or below. The scale
    is always a power of two, so that dividing by it is exact.

    Losses are divided by the labels of the whole step, so the larger a step, the smaller are the gradients of its
    micro-batches, and at 65,536 sequences many of them would be zero in fp16. `set_labels` keeps them as large as in a
    step of 256, by another power of two: a factor before the backward pass, a divisor of the fp32 sums after it.

    scale: fp32. good_updates: int64, since the scale last changed. skipped_updates: int64, of the whole run. Scalars on
    the device, changed in place.
    """

    def __init__(
        self,
        device: torch.device | str = "cpu",
        *,
        initial: float = 2.0**16,
        grow_every: int = 2000,
        floor: float = 1.0,
        ceiling: float = 2.0**24,
    ) -> None:
        self.grow_every, self.floor, self.ceiling, self._initial = grow_every, floor, ceiling, initial
        self.scale = torch.tensor(initial, dtype=torch.float32, device=device)
        self.good_updates = torch.zeros((), dtype=torch.int64, device=device)
        self.skipped_updates = torch.zeros((), dtype=torch.int64, device=device)
        self._of_step = torch.ones((), dtype=torch.float32, device=device)

    def set_labels(self, labels: int) -> None:
        """Fits the factor to the size of a step. labels: of its rarest loss, over all ranks."""
        self._of_step.fill_(2.0 ** max(0, (labels // _USUAL_LABELS).bit_length() - 1))

    @property
    def factor(self) -> Tensor:
        """What the losses of the present step are multiplied by: an fp32 scalar, of its own memory."""
        return self.scale * self._of_step

    def reset(self) -> None:
        """Returns all numbers to those of a new scale."""
        self.scale.fill_(self._initial)
        self.good_updates.zero_()
        self.skipped_updates.zero_()

    @torch.no_grad()
    def update(self, finite: Tensor) -> Tensor:
        """Adapts the scale to an update. finite: bool scalar, whether its gradients were finite, the same on all ranks.

        Returns whether training can continue: a bool scalar, False after an overflow that halving cannot fix.
        """
        sound = finite | (self.scale > self.floor)
        good = (self.good_updates + 1) * finite
        grows = (good >= self.grow_every) & (self.scale * 2 <= self.ceiling)
        halved = (self.scale / 2).clamp(min=self.floor)
        self.scale.copy_(torch.where(finite, torch.where(grows, self.scale * 2, self.scale), halved))
        self.good_updates.copy_(torch.where(grows, 0, good))
        self.skipped_updates += ~finite
        return sound

    def state_dict(self) -> dict[str, Tensor]:
        """Its tensors by name."""
        return {
            "scale": self.scale,
            "good_updates": self.good_updates,
            "skipped_updates": self.skipped_updates,
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Loads what `state_dict` returned. KeyError if a tensor is missing."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(state[name])
