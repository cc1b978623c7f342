"""The activations that a configuration may name, and their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}

_gelu_backward = torch.ops.aten.gelu_backward
BACKWARD: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "gelu": _gelu_backward,
    "gelu_new": partial(_gelu_backward, approximate="tanh"),
    "gelu_pytorch_tanh": partial(_gelu_backward, approximate="tanh"),
    "relu": partial(torch.ops.aten.threshold_backward, threshold=0),
}
"""From the gradient of an activation's output and its input to the gradient of its input."""
