"""One attention function over packed sequences, with back-ends behind it that a test holds equal.

Legend: T token slots, N heads, D head width, H = N * D.
"""

from __future__ import annotations

import torch
from torch import Tensor

from bertsmith.base.log import choose
from bertsmith.model.block_attention import block_attention
from bertsmith.model.packed import Packed


def attend(qkv: Tensor, heads: int, packed: Packed, dropout: float = 0.0) -> Tensor:
    """Every slot attends to all slots of its own sequence and to no other.

    qkv: [T, 3, H], queries, keys and values. dropout: on the probabilities, 0 outside training. Returns [T, H].
    """
    if _flash_is_possible(qkv, dropout):
        choose("attention", "flash varlen", "half precision on a card that has it, no attention dropout")
        return _flash(qkv, heads, packed)
    choose("attention", "padded blocks", "the exact back-end for this device, dtype and dropout")
    return block_attention(qkv, heads, packed.head_blocks(heads), dropout)


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
