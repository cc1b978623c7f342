"""Models with random weights, made on the device that runs them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

M = TypeVar("M", bound=torch.nn.Module)
_DEVIATION = 0.02


def fresh(build: Callable[[], M], device: torch.device) -> M:
    """What `build` gives, with normal matrices and biases of 0, the same each time.

    Drawn where it is to run: a CPU takes seconds for the weights of BERT-large, and a bench has a model in each of its
    processes.
    """
    torch.manual_seed(0)
    with device:
        model = build()
    with torch.no_grad():
        for name, each in model.named_parameters():
            if each.ndim > 1:
                each.normal_(0.0, _DEVIATION)
            elif name.endswith("bias"):
                each.zero_()
    return model
