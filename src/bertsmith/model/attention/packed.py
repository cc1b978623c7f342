"""A layout as tensors on the model's device, made once per batch and used by every layer.

Legend: S sequences, T token slots, L columns of a padded row, P = S * L padded places.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from bertsmith.base.layout import Layout
from bertsmith.model.attention.blocks import HeadBlocks

# Columns of a padded row are a multiple of this, as the kernels of masked attention want them.
_COLUMNS = 8


class PaddedRows(NamedTuple):
    """A row of L places for each sequence. spread: int64[P], the slot that a place shows. real: bool[P], whether it is
    one of the row's own. restore: int64[T], the place of each slot. seen: bool[S, 1, 1, L], places to attend to; an
    empty sequence's first place is seen, so that no row is without any."""

    spread: Tensor
    real: Tensor
    restore: Tensor
    seen: Tensor


class Offsets:
    """Where each of S sequences lies among T slots, as the device alone knows it; its shapes are what the host knows.

    offsets: int32[S + 1]. tokens: T. longest: the most slots of a sequence, or a bound. first_slots: int64[S], each
    sequence's [CLS] (an empty sequence's is clamped into the batch). padded: what `padded_rows` gives, where
    that is known already.
    """

    def __init__(self, offsets: Tensor, tokens: int, longest: int, padded: PaddedRows | None = None) -> None:
        self.offsets, self.tokens, self.longest = offsets, tokens, longest
        self.first_slots = offsets[:-1].long().clamp(max=max(tokens - 1, 0))
        self._padded_rows = padded

    @property
    def sequences(self) -> int:
        return len(self.offsets) - 1

    @property
    def padded_places(self) -> int:
        """P."""
        return self.sequences * self._columns

    @property
    def attended_slots(self) -> int:
        """The slots that attention has worked on so far, padding included: T where nothing was padded."""
        return self.tokens if self._padded_rows is None else self.padded_places

    @property
    def _columns(self) -> int:
        return max(-(-self.longest // _COLUMNS) * _COLUMNS, _COLUMNS)

    def padded_rows(self) -> PaddedRows:
        """The places of all sequences padded alike; worked out on the device, once for all layers."""
        if self._padded_rows is None:
            offsets = self.offsets.long()
            column = torch.arange(self._columns, device=offsets.device)
            inside = column < (offsets[1:] - offsets[:-1])[:, None]
            # Padding shows the row's own first slot: a neighbour that is not a number would pass through any mask.
            spread = torch.where(inside, offsets[:-1, None] + column, self.first_slots[:, None]).flatten()
            slot = torch.arange(self.tokens, device=offsets.device)
            # An empty sequence begins where the next one does, and `right` passes it by.
            sequence = torch.searchsorted(offsets, slot, right=True) - 1
            restore = sequence * self._columns + slot - offsets[sequence]
            seen = (inside | (column == 0))[:, None, None, :]
            self._padded_rows = PaddedRows(spread, inside.flatten(), restore, seen)
        return self._padded_rows


class Packed(Offsets):
    """A layout that the host knows too. layout: by which back-ends choose their shapes."""

    def __init__(self, layout: Layout, device: torch.device | str = "cpu") -> None:
        self.layout = layout
        self.device = torch.device(device)
        self._head_blocks: dict[int, HeadBlocks] = {}
        # By itself PyTorch waits for all that is queued on a GPU.
        offsets = torch.from_numpy(layout.offsets).to(self.device, torch.int32, non_blocking=True)
        super().__init__(offsets, layout.tokens, layout.longest)

    @property
    def attended_slots(self) -> int:
        return len(self.layout.blocks.slots) if self._head_blocks else super().attended_slots

    def head_blocks(self, heads: int) -> HeadBlocks:
        """Where the rows of each head go in the padded blocks; worked out once for all layers."""
        if heads not in self._head_blocks:
            self._head_blocks[heads] = HeadBlocks.of(self.layout, heads, self.device)
        return self._head_blocks[heads]
