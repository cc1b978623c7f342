"""Attention on one padded block through PyTorch's own fused kernel, without a word from the host.

Its shapes are those of the batch, never of its content, so compiled steps have the same graphs for all batches. It runs
in every precision and on every GPU, with dropout on the probabilities. Both ways between packed and padded are gathers:
each slot has one place, so the gradient of a gather is the gather back, and nothing is added up in an order that
changes between runs.

Legend: T token slots, S sequences, L columns, P = S * L places, N heads, D head width, H = N * D.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from bertsmith.model.attention.packed import Offsets, PaddedRows


def padded_attention(qkv: Tensor, heads: int, offsets: Offsets, dropout: float) -> Tensor:
    """qkv [T, 3, H] -> [T, H]. dropout: on the probabilities, with the device's default generator."""
    tokens, _, hidden = qkv.shape
    rows = offsets.padded_rows()
    padded = _spread(qkv.reshape(tokens, 3 * hidden), rows)
    by_head = padded.view(offsets.sequences, -1, 3, heads, hidden // heads)
    q, k, v = (part.transpose(1, 2) for part in by_head.unbind(2))
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=rows.seen, dropout_p=dropout)
    return _restore(out.transpose(1, 2).reshape(-1, hidden), rows)


def _spread(x: Tensor, rows: PaddedRows) -> Tensor:
    """[T, C] -> [P, C]."""
    out: Tensor = _Spread.apply(x, rows.spread, rows.restore)  # type: ignore[no-untyped-call]
    return out


def _restore(x: Tensor, rows: PaddedRows) -> Tensor:
    """[P, C] -> [T, C]."""
    out: Tensor = _Restore.apply(x, rows.restore, rows.spread, rows.real)  # type: ignore[no-untyped-call]
    return out


class _Spread(torch.autograd.Function):
    """What comes back from padding is zero: no query of it is kept, and no key of it is seen."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, spread: Tensor, restore: Tensor) -> Tensor:
        ctx.save_for_backward(restore)
        return x.index_select(0, spread)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (restore,) = ctx.saved_tensors
        return gradient.index_select(0, restore), None, None


class _Restore(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, restore: Tensor, spread: Tensor, real: Tensor) -> Tensor:
        ctx.save_for_backward(spread, real)
        return x.index_select(0, restore)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        spread, real = ctx.saved_tensors
        return gradient.index_select(0, spread).masked_fill(~real[:, None], 0), None, None, None
