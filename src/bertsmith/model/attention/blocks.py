"""Exact attention on a few padded blocks of like lengths: two matrix products and a softmax, each head by itself.

On a CPU this beats scaled_dot_product_attention, whose backward is slow in bf16. Rows of one head (D numbers) are
gathered straight into the order that the products want and back, so nothing is permuted or copied between.

Legend: T token slots, N heads, D head width, R rows of the blocks laid flat (P padded places x N heads), L columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertsmith.base.layout import Layout
from bertsmith.model.cpu import kernels
from bertsmith.model.cpu.library import can_take
from bertsmith.model.cpu.masks import Dropped, kept_places, scale_of


@dataclass(frozen=True)
class Block:
    """start: its first row of R. batch: sequences x heads. longest: L. lengths: int64[sequences]. padding:
    bool[sequences, 1, 1, L] or None."""

    start: int
    batch: int
    longest: int
    lengths: Tensor
    padding: Tensor | None

    def hide_padding(self, scores: Tensor) -> None:
        """Sets the scores [batch, L, L] of columns that are padding to -inf, in place."""
        if self.padding is not None:
            # Added, because a CPU fills by a mask at a third of the speed.
            hidden = torch.zeros_like(self.padding, dtype=scores.dtype).masked_fill_(self.padding, -math.inf)
            scores.view(len(self.padding), -1, self.longest, self.longest).add_(hidden)


@dataclass(frozen=True)
class HeadBlocks:
    """Where each head's row of each slot goes, for queries, keys, values (3 R rows) and for outputs (R rows).

    gather: int64[3 R] into [T, 3, N] laid flat. scatter: int64[T, 3, N] into 3 R, its inverse on what is not padding.
    restore: int64[T, N] into R. spread: int64[R] into [T, N], its inverse. padding_rows: rows of R that are padding.
    """

    blocks: tuple[Block, ...]
    rows: int
    gather: Tensor
    scatter: Tensor
    restore: Tensor
    spread: Tensor
    padding_rows: Tensor

    @classmethod
    def of(cls, layout: Layout, heads: int, device: torch.device) -> HeadBlocks:
        """Works out the rows on the host."""
        head = np.arange(heads)[None, :, None]
        spread, real, blocks = [], [], []
        place = start = 0
        for sequences, longest in layout.blocks.shapes:
            part = slice(place, place + sequences * longest)
            slots = layout.blocks.slots[part].reshape(sequences, 1, longest)
            inside = layout.blocks.real[part].reshape(sequences, 1, longest)
            spread.append((slots * heads + head).ravel())
            real.append(np.broadcast_to(inside, (sequences, heads, longest)).ravel())
            padding = None if inside.all() else torch.from_numpy(~inside[:, :, None]).to(device, non_blocking=True)
            lengths = torch.from_numpy(inside[:, 0].sum(-1)).to(device, non_blocking=True)
            blocks.append(Block(start, sequences * heads, longest, lengths, padding))
            place, start = part.stop, start + sequences * heads * longest
        rows = np.concatenate([*spread, np.zeros(0, np.int64)])
        is_real = np.concatenate([*real, np.zeros(0, np.bool_)])
        restore = np.empty(layout.tokens * heads, dtype=np.int64)
        restore[rows[is_real]] = np.flatnonzero(is_real)
        slot, which = np.divmod(rows, heads)
        parts = np.arange(3)[:, None]
        gather = slot * (3 * heads) + parts * heads + which
        scatter = restore.reshape(-1, 1, heads) + parts * start
        arrays = (gather.ravel(), scatter.ravel(), restore, rows, np.flatnonzero(~is_real))
        return cls(tuple(blocks), start, *(torch.from_numpy(each).to(device, non_blocking=True) for each in arrays))


def block_attention(qkv: Tensor, heads: int, where: HeadBlocks, dropout: float) -> Tensor:
    """qkv [T, 3, H] -> [T, H]. dropout: on the probabilities, with the device's default generator."""
    out: Tensor = _BlockAttention.apply(qkv, heads, where, dropout)  # type: ignore[no-untyped-call]
    return out


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, heads: int, where: HeadBlocks, dropout: float) -> Tensor:
        tokens, _, hidden = qkv.shape
        width = hidden // heads
        parts = qkv.reshape(-1, width).index_select(0, where.gather).view(3, where.rows, width)
        out = parts.new_empty(where.rows, width)
        scale = scale_of(dropout)
        ctx.in_kernels = can_take(parts)
        softmax = _softmax_in_kernels if ctx.in_kernels else _softmax
        kept = []
        for block in where.blocks:
            q, k, v = (_of(part, block) for part in parts)
            scores = _product(q, k.transpose(1, 2), 1 / math.sqrt(width))
            dropped, saved = softmax(scores, block, dropout)
            kept += saved
            _product(dropped, v, scale, out=_of(out, block))
        ctx.save_for_backward(parts, *kept)
        ctx.where, ctx.dropout, ctx.scale = where, dropout, scale
        return out.index_select(0, where.restore).view(tokens, hidden)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        parts, *kept = ctx.saved_tensors
        where, dropout, scale = ctx.where, ctx.dropout, ctx.scale
        tokens, hidden = gradient.shape
        width = parts.shape[-1]
        grad_out = gradient.reshape(-1, width).index_select(0, where.spread).index_fill_(0, where.padding_rows, 0)
        grad_parts = torch.empty_like(parts)
        saved = iter(kept)
        softmax_backward = _softmax_backward_in_kernels if ctx.in_kernels else _softmax_backward
        for block in where.blocks:
            q, k, v = (_of(part, block) for part in parts)
            grad_q, grad_k, grad_v = (_of(part, block) for part in grad_parts)
            grad = _of(grad_out, block)
            grad_dropped = _product(grad, v.transpose(1, 2), scale)
            dropped, grad_scores = softmax_backward(grad_dropped, saved, dropout)
            _product(dropped.transpose(1, 2), grad, scale, out=grad_v)
            _product(grad_scores, k, 1 / math.sqrt(width), out=grad_q)
            _product(grad_scores.transpose(1, 2), q, 1 / math.sqrt(width), out=grad_k)
        grad_qkv = grad_parts.view(-1, width).index_select(0, where.scatter)
        return grad_qkv.view(tokens, 3, hidden), None, None, None


def _of(rows: Tensor, block: Block) -> Tensor:
    """The block's part of [R, D] as [batch, L, D]."""
    return rows[block.start : block.start + block.batch * block.longest].view(block.batch, block.longest, -1)


def _product(a: Tensor, b: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """scale a b, batch by batch; scaled before it is rounded, which costs no visit of its own."""
    out = a.new_empty(*a.shape[:2], b.shape[2]) if out is None else out
    return torch.baddbmm(out, a, b, beta=0, alpha=scale, out=out)


# Of the four below, the first two give the probabilities [batch, L, L] of scores with 0 for those that are dropped, not
# scaled, and what the other two need to give them again together with the gradient of the scores.


def _softmax(scores: Tensor, block: Block, dropout: float) -> tuple[Tensor, list[Tensor]]:
    block.hide_padding(scores)
    probabilities = scores.softmax(-1)
    if not dropout:
        return probabilities, [probabilities]
    places = _kept_places(probabilities, dropout)
    return probabilities * places, [probabilities, places]


def _softmax_in_kernels(scores: Tensor, block: Block, dropout: float) -> tuple[Tensor, list[Tensor]]:
    return kernels.softmax_(scores, block.lengths, Dropped.draw(dropout)), [scores]


def _softmax_backward(gradient: Tensor, saved: Iterator[Tensor], dropout: float) -> tuple[Tensor, Tensor]:
    probabilities = dropped = next(saved)
    if dropout:
        places = next(saved)
        dropped = probabilities * places
        gradient *= places
    return dropped, torch._softmax_backward_data(gradient, probabilities, -1, probabilities.dtype)


def _softmax_backward_in_kernels(gradient: Tensor, saved: Iterator[Tensor], dropout: float) -> tuple[Tensor, Tensor]:
    return kernels.softmax_backward_(gradient, next(saved), dropout > 0), gradient


def _kept_places(weights: Tensor, dropout: float) -> Tensor:
    """1 where a weight is kept, else 0, in its dtype."""
    # All by the same rounded probability, for the same scale.
    if torch.compiler.is_compiling():
        # PyTorch's compiler would follow numpy by operators that cannot compare numbers of uint16; and by its back-end
        # "inductor" on a CPU, what is drawn in place can be lost, and be memory that nobody has written to.
        drawn = torch.rand(weights.shape, dtype=torch.float32, device=weights.device)
        return (drawn < 1 / scale_of(dropout)).to(weights.dtype)
    if weights.device.type == "cpu":
        return kept_places(weights.shape, dropout, weights.dtype)
    return torch.empty_like(weights).bernoulli_(1 / scale_of(dropout))
