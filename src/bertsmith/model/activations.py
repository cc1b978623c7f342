"""The activations that a configuration may name."""

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
BY_TANH = {"gelu": False, "gelu_new": True, "gelu_pytorch_tanh": True}
"""Whether a GELU is the approximation by tanh, or by erf."""


def gelu_by_tanh(x: Tensor) -> Tensor:
    """GELU by tanh, written by the logistic function: (1 + tanh(u)) / 2 is that of 2 u. PyTorch's compiler takes it for
    a function of the GPU's that costs less than tanh."""
    if x.dtype != torch.float32:
        return gelu_by_tanh(x.float()).to(x.dtype)
    # No `x.float()` here: PyTorch 2.11 loses the gradient where a function's forward gives its input another name.
    return x * torch.sigmoid(1.5957691216057308 * x * (1 + 0.044715 * x * x))
