"""Exact attention on a few padded blocks of like lengths: two matrix products and a softmax, each head by itself.

On a CPU this beats scaled_dot_product_attention, whose backward is slow in bf16. Rows of one head (D numbers) are
gathered straight into the order that the products want and back, so nothing is permuted or copied between.

Legend: T token slots, N heads, D head width, R rows of the blocks laid flat (P padded places x N heads), L columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bertsmith.base.layout import Layout
from bertsmith.model.cpu import kernels as cpu_kernels
from bertsmith.model.cpu.dropout import kept_places, scale_of


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
            padding = None if inside.all() else torch.from_numpy(~inside[:, :, None]).to(device)
            lengths = torch.from_numpy(inside[:, 0].sum(-1)).to(device)
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
        return cls(tuple(blocks), start, *(torch.from_numpy(each).to(device) for each in arrays))


def block_attention(qkv: Tensor, heads: int, where: HeadBlocks, dropout: float) -> Tensor:
    """qkv [T, 3, H] -> [T, H]. dropout: on the probabilities, with the device's default generator."""
    out: Tensor = _BlockAttention.apply(qkv, heads, where, dropout)  # type: ignore[no-untyped-call]
    return out


class _BlockAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, qkv: Tensor, heads: int, where: HeadBlocks, dropout: float) -> Tensor:  # type: ignore[no-untyped-def]
        tokens, _, hidden = qkv.shape
        width = hidden // heads
        parts = qkv.reshape(-1, width).index_select(0, where.gather).view(3, where.rows, width)
        out = parts.new_empty(where.rows, width)
        scale = scale_of(dropout) if dropout else 1.0
        ctx.in_kernels = cpu_kernels.can_take(parts)
        odds = _odds_in_kernels if ctx.in_kernels else _odds
        kept = []
        for block in where.blocks:
            q, k, v = (_of(part, block) for part in parts)
            scores = _product(q, k.transpose(1, 2), 1 / math.sqrt(width))
            dropped, saved = odds(scores, block, dropout)
            kept += saved
            _product(dropped, v, scale, out=_of(out, block))
        ctx.save_for_backward(parts, *kept)
        ctx.where, ctx.dropout, ctx.scale = where, dropout, scale
        return out.index_select(0, where.restore).view(tokens, hidden)

    @staticmethod
    def backward(ctx, gradient: Tensor):  # type: ignore[no-untyped-def]
        parts, *kept = ctx.saved_tensors
        where, dropout, scale = ctx.where, ctx.dropout, ctx.scale
        tokens, hidden = gradient.shape
        width = parts.shape[-1]
        by_out = gradient.reshape(-1, width).index_select(0, where.spread).index_fill_(0, where.padding_rows, 0)
        by_parts = torch.empty_like(parts)
        each = iter(kept)
        scores_from = _scores_from_kernels if ctx.in_kernels else _scores_from
        for block in where.blocks:
            q, k, v = (_of(part, block) for part in parts)
            by_q, by_k, by_v = (_of(part, block) for part in by_parts)
            by = _of(by_out, block)
            by_odds = _product(by, v.transpose(1, 2), scale)
            dropped, by_scores = scores_from(by_odds, each, dropout)
            _product(dropped.transpose(1, 2), by, scale, out=by_v)
            _product(by_scores, k, 1 / math.sqrt(width), out=by_q)
            _product(by_scores.transpose(1, 2), q, 1 / math.sqrt(width), out=by_k)
        by_qkv = by_parts.view(-1, width).index_select(0, where.scatter)
        return by_qkv.view(tokens, 3, hidden), None, None, None


def _of(rows: Tensor, block: Block) -> Tensor:
    """The block's part of [R, D] as [batch, L, D]."""
    return rows[block.start : block.start + block.batch * block.longest].view(block.batch, block.longest, -1)


def _product(a: Tensor, b: Tensor, scale: float, out: Tensor | None = None) -> Tensor:
    """scale a b, batch by batch; scaled before it is rounded, which costs no visit of its own."""
    out = a.new_empty(*a.shape[:2], b.shape[2]) if out is None else out
    return torch.baddbmm(out, a, b, beta=0, alpha=scale, out=out)


# The four below: odds are the softmax of scores [batch, L, L]. Those that go on are 0 where they are dropped, and not
# scaled; what is saved for the way back is for the second function of the same pair to read.


def _odds(scores: Tensor, block: Block, dropout: float) -> tuple[Tensor, list[Tensor]]:
    block.hide_padding(scores)
    odds = scores.softmax(-1)
    if not dropout:
        return odds, [odds]
    places = _kept_places(odds, dropout)
    return odds * places, [odds, places]


def _scores_from(by_odds: Tensor, saved: Iterator[Tensor], dropout: float) -> tuple[Tensor, Tensor]:
    """The odds that went on, and the gradient of the scores from that of those odds."""
    odds = dropped = next(saved)
    if dropout:
        places = next(saved)
        dropped = odds * places
        by_odds *= places
    return dropped, torch._softmax_backward_data(by_odds, odds, -1, odds.dtype)


def _odds_in_kernels(scores: Tensor, block: Block, dropout: float) -> tuple[Tensor, list[Tensor]]:
    dropped = cpu_kernels.softmax_(scores, block.lengths, cpu_kernels.Dropped.draw(dropout))
    return dropped, [scores]


def _scores_from_kernels(by_odds: Tensor, saved: Iterator[Tensor], dropout: float) -> tuple[Tensor, Tensor]:
    return cpu_kernels.softmax_back_(by_odds, next(saved), dropout > 0), by_odds


def _kept_places(weights: Tensor, dropout: float) -> Tensor:
    """1 where a weight is kept, else 0, in its dtype."""
    if weights.device.type == "cpu":
        return kept_places(weights.shape, dropout, weights.dtype)
    # By the same rounded probability, for the same scale.
    return torch.empty_like(weights).bernoulli_(1 / scale_of(dropout))
