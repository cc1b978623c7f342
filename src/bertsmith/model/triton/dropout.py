"""Draws for dropout on a GPU, by a Triton kernel: a bit for each place, eight from one call of Philox.

A compiled step has the draws in its graph as an operator, and the kernels that the compiler generates unpack the bits
where they use them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from bertsmith.base.device import made_current
from bertsmith.model.triton import HAS_TRITON

EIGHT = 8
BLOCK = 1024


def can_draw(shape: Sequence[int]) -> bool:
    """Whether the kernel is there, and rows are whole bytes, numbered in 31 bits."""
    return HAS_TRITON and shape[-1] % EIGHT == 0 and 0 < math.prod(shape) // EIGHT < 2**31


def kept_bits(like: Tensor, dropped: int) -> Tensor:
    """Which places of a tensor [..., H] are kept: uint8[..., H / 8], the first of eight in the lowest bit. dropped: of
    65,536 draws. The seed comes from the device's default generator."""
    seed = torch.randint(2**62, (1,), device=like.device)
    bits: Tensor = _kept_bits(seed, [*like.shape[:-1], like.shape[-1] // EIGHT], dropped)
    return bits


@torch.library.custom_op("bertsmith::kept_bits", mutates_args=())
def _kept_bits(seed: Tensor, shape: list[int], dropped: int) -> Tensor:
    from bertsmith.model.triton import kernels

    bits = seed.new_empty(shape, dtype=torch.uint8)
    with made_current(seed.device):
        kernels.kept_bits[(-(-bits.numel() // BLOCK),)](bits, seed, dropped, bits.numel(), R=BLOCK)
    return bits


@_kept_bits.register_fake
def _(seed: Tensor, shape: list[int], dropped: int) -> Tensor:
    return seed.new_empty(shape, dtype=torch.uint8)
