"""The activations that a configuration may name, and their derivatives."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import torch
from torch import Tensor
from torch.nn import functional

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": partial(functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(functional.gelu, approximate="tanh"),
    "relu": functional.relu,
}


@cache
def slopes(activation: str) -> Tensor:
    """The derivative at each number of bf16, by its bits: fp32[2^16], as float64 gives it.

    A table, because the few thousand numbers that occur stay in a core's cache, and to look one up takes half the time
    of an error function and an exponential.
    """
    with torch.inference_mode(False), torch.enable_grad():
        numbers = (
            (torch.arange(1 << 16, dtype=torch.int32, device="cpu") << 16).view(torch.float32).double().requires_grad_()
        )
        (found,) = torch.autograd.grad(FUNCTIONS[activation](numbers).sum(), numbers)
    return found.float()
