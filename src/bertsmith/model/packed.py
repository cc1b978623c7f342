"""A layout as tensors on the model's device, made once per batch and used by every layer.

Legend: S sequences, T token slots, P places of the padded blocks, B rows, L columns of a padded batch, H width.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bertsmith.base.layout import Layout


class Packed:
    """Where each of S sequences lies among T slots.

    offsets: int32[S + 1]. first_slots: int64[S], each sequence's [CLS] (an empty sequence's is clamped into the batch).
    layout: the same on the host, by which back-ends choose their shapes.
    """

    def __init__(self, layout: Layout, device: torch.device | str = "cpu") -> None:
        self.layout = layout
        self.device = torch.device(device)
        self.longest = layout.longest
        self.offsets = torch.from_numpy(layout.offsets).to(self.device, torch.int32)

    @cached_property
    def first_slots(self) -> Tensor:
        return self.offsets[:-1].long().clamp_(max=max(self.layout.tokens - 1, 0))

    @cached_property
    def slots(self) -> Tensor:
        """int64[P]: the slot that each place of the padded blocks shows."""
        return torch.from_numpy(self.layout.blocks.slots).to(self.device)

    @cached_property
    def places(self) -> Tensor:
        """int64[T]: the place of each slot."""
        return torch.from_numpy(self.layout.blocks.places).to(self.device)

    @cached_property
    def padding_places(self) -> Tensor:
        """int64[P - T]: the places that are padding."""
        return torch.from_numpy(np.flatnonzero(~self.layout.blocks.real)).to(self.device)

    @cached_property
    def padding_masks(self) -> list[Tensor | None]:
        """For each block bool[rows, 1, 1, L], true where a key is padding; None for a block without any."""
        masks: list[Tensor | None] = []
        start = 0
        for rows, longest in self.layout.blocks.shapes:
            real = self.layout.blocks.real[start : start + rows * longest].reshape(rows, 1, 1, longest)
            masks.append(None if real.all() else torch.from_numpy(~real).to(self.device))
            start += rows * longest
        return masks


def to_blocks(x: Tensor, packed: Packed) -> Tensor:
    """x[T, ...] -> [P, ...], the padded blocks laid flat. Padding shows its sequence's first slot, without gradient."""
    out: Tensor = _ToBlocks.apply(x, packed.slots, packed.places)  # type: ignore[no-untyped-call]
    return out


def from_blocks(x: Tensor, packed: Packed) -> Tensor:
    """x[P, ...] -> [T, ...], the inverse of `to_blocks`. The gradient of padding is zero."""
    out: Tensor = _FromBlocks.apply(x, packed.places, packed.slots, packed.padding_places)  # type: ignore[no-untyped-call]
    return out


# Both directions of both are gathers, because every slot has exactly one place. An ordinary index would scatter-add
# its gradient, which is serial on a CPU and not repeatable on a GPU.


class _ToBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, slots: Tensor, places: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(places)
        return x.index_select(0, slots)

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[no-untyped-def]
        (places,) = ctx.saved_tensors
        return gradient.index_select(0, places), None, None


class _FromBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, places: Tensor, slots: Tensor, padding: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(slots, padding)
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[no-untyped-def]
        slots, padding = ctx.saved_tensors
        return gradient.index_select(0, slots).index_fill_(0, padding, 0), None, None, None
