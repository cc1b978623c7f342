"""A layout as tensors on the model's device, made once per batch and used by every layer.

Legend: S sequences, T token slots.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from bertsmith.base.layout import Layout
from bertsmith.model.block_attention import HeadBlocks


class Packed:
    """Where each of S sequences lies among T slots.

    offsets: int32[S + 1]. first_slots: int64[S], each sequence's [CLS] (an empty sequence's is clamped into the batch).
    layout: the same on the host, by which back-ends choose their shapes.
    """

    def __init__(self, layout: Layout, device: torch.device | str = "cpu") -> None:
        self.layout = layout
        self.device = torch.device(device)
        self.longest = layout.longest
        self._head_blocks: dict[int, HeadBlocks] = {}
        self.offsets = torch.from_numpy(layout.offsets).to(self.device, torch.int32)

    @cached_property
    def first_slots(self) -> Tensor:
        return self.offsets[:-1].long().clamp_(max=max(self.layout.tokens - 1, 0))

    @property
    def attended_slots(self) -> int:
        """The slots that attention has worked on so far, padding included: T where no block was padded."""
        return len(self.layout.blocks.slots) if self._head_blocks else self.layout.tokens

    def head_blocks(self, heads: int) -> HeadBlocks:
        """Where the rows of each head go in the padded blocks; worked out once for all layers."""
        if heads not in self._head_blocks:
            self._head_blocks[heads] = HeadBlocks.of(self.layout, heads, self.device)
        return self._head_blocks[heads]
