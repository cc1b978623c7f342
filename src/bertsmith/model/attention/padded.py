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

from bertsmith.model.attention.packed import Offsets


def padded_attention(qkv: Tensor, heads: int, offsets: Offsets, dropout: float) -> Tensor:
    """qkv [T, 3, H] -> [T, H]. dropout: on the probabilities, with the device's default generator."""
    tokens, _, hidden = qkv.shape
    rows = offsets.padded_rows()
    # The gradient of padding is zero: no query of it is kept, and no key of it is seen.
    padded = _gathered(qkv.reshape(tokens, 3 * hidden), rows.spread, rows.restore)
    by_head = padded.view(offsets.sequences, -1, 3, heads, hidden // heads)
    q, k, v = (part.transpose(1, 2) for part in by_head.unbind(2))
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=rows.seen, dropout_p=dropout)
    return _gathered(out.transpose(1, 2).reshape(-1, hidden), rows.restore, rows.spread, rows.real)


def _gathered(x: Tensor, places: Tensor, back: Tensor, real: Tensor | None = None) -> Tensor:
    """x[places]. back: where each row of x stands among these, so that its gradient is a gather too. real: bool, which
    rows of x stand there at all; None for all."""
    out: Tensor = _Gathered.apply(x, places, back, real)  # type: ignore[no-untyped-call]
    return out


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor, back: Tensor, real: Tensor | None) -> Tensor:
        ctx.save_for_backward(back, *([] if real is None else [real]))
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        back, *real = ctx.saved_tensors
        grad_x = gradient.index_select(0, back)
        return grad_x.masked_fill(~real[0][:, None], 0) if real else grad_x, None, None, None
