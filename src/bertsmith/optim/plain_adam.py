"""Adam's update in basic operations, for a compiler to fuse: PyTorch's fused kernel cannot be traced.

The same sums as `torch._fused_adamw_`, up to the rounding of single operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AdamSettings:
    """rate, step, divisor, finite: scalars on the device. divisor: of the gradients. finite: 0 changes nothing."""

    rate: Tensor
    step: Tensor
    divisor: Tensor
    finite: Tensor
    betas: tuple[float, float]
    epsilon: float
    decay: float


def plain_adam(
    targets: Sequence[Tensor],
    gradients: Sequence[Tensor],
    means: Sequence[Tensor],
    mean_squares: Sequence[Tensor],
    settings: AdamSettings,
) -> None:
    """Updates means and mean squares, and targets by -rate (m / (sqrt(v) + epsilon) + decay target), all in place.

    The gradients are not changed.
    """
    beta1, beta2 = settings.betas
    go = settings.finite > 0
    first = settings.rate / (1 - beta1**settings.step)
    second = (1 - beta2**settings.step).sqrt()
    for target, given, mean, square in zip(targets, gradients, means, mean_squares, strict=True):
        gradient = given / settings.divisor
        new_mean = torch.lerp(mean, gradient, 1 - beta1)
        new_square = beta2 * square + (1 - beta2) * gradient * gradient
        moved = target * (1 - settings.rate * settings.decay) if settings.decay else target
        moved = moved - first * new_mean / (new_square.sqrt() / second + settings.epsilon)
        mean.copy_(torch.where(go, new_mean, mean))
        square.copy_(torch.where(go, new_square, square))
        target.copy_(torch.where(go, moved, target))
