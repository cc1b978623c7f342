"""One attention function over packed sequences, with back-ends behind it that a test holds equal.

Legend: T token slots, P places of the padded blocks, N heads, D head width, H = N * D.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from bertsmith.base.log import choose
from bertsmith.model.packed import Packed, from_blocks, to_blocks


def attend(qkv: Tensor, heads: int, packed: Packed, dropout: float = 0.0) -> Tensor:
    """Every slot attends to all slots of its own sequence and to no other.

    qkv: [T, 3, H], queries, keys and values. dropout: on the probabilities, 0 outside training. Returns [T, H].
    """
    if _flash_is_possible(qkv, dropout):
        choose("attention", "flash varlen", "half precision on a card that has it, no attention dropout")
        return _flash(qkv, heads, packed)
    choose("attention", "padded blocks", "the exact back-end for this device, dtype and dropout")
    return _blocks(qkv, heads, packed, dropout)


def _flash_is_possible(qkv: Tensor, dropout: float) -> bool:
    return (
        qkv.is_cuda
        and dropout == 0.0
        and qkv.dtype in (torch.bfloat16, torch.float16)
        and torch.cuda.get_device_capability(qkv.device) >= (8, 0)
    )


def _flash(qkv: Tensor, heads: int, packed: Packed) -> Tensor:
    from torch.nn.attention.varlen import varlen_attn

    tokens, _, hidden = qkv.shape
    q, k, v = qkv.view(tokens, 3, heads, hidden // heads).unbind(1)
    out = varlen_attn(q, k, v, packed.offsets, packed.offsets, packed.longest, packed.longest)
    assert isinstance(out, Tensor)
    return out.reshape(tokens, hidden)


def _blocks(qkv: Tensor, heads: int, packed: Packed, dropout: float) -> Tensor:
    """Two matrix products and a softmax on a few padded blocks of like lengths.

    On a CPU this beats scaled_dot_product_attention, whose backward is slow in bf16.
    """
    tokens, _, hidden = qkv.shape
    head = hidden // heads
    padded = to_blocks(qkv.view(tokens, 3 * hidden), packed)
    outputs = []
    start = 0
    for (rows, longest), padding in zip(packed.layout.blocks.shapes, packed.padding_masks, strict=True):
        block = padded[start : start + rows * longest].view(rows, longest, 3, heads, head).permute(2, 0, 3, 1, 4)
        q, k, v = block.unbind(0)  # each [rows, N, L, D]
        scores = (q * (1 / math.sqrt(head))) @ k.transpose(-1, -2)
        if padding is not None:
            scores = scores.masked_fill(padding, -math.inf)
        probabilities = torch.dropout(scores.softmax(-1), dropout, dropout > 0)
        outputs.append((probabilities @ v).transpose(1, 2).reshape(rows * longest, hidden))
        start += rows * longest
    return from_blocks(torch.cat(outputs) if outputs else padded.new_zeros(0, hidden), packed)
