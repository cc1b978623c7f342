"""Attention over packed sequences with dropout on the probabilities, in Triton kernels of our own.

Both directions are operators of PyTorch, so a compiled step has them in its graph as they are. The kernels read
queries, keys and values where they lie, and write their gradients so; nothing is padded, and nothing is kept for the
backward pass but one number a row.

Legend: T token slots, S sequences, N heads, D head width, H = N * D.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
from torch import Tensor

from bertsmith.base.device import made_current

_HAS_TRITON = importlib.util.find_spec("triton") is not None
_WIDTHS = (16, 32, 64, 128)
# Rows of a block of queries and of keys, and the warps that share it: the fewest for which no register spills on Hopper
# and Blackwell. On Ampere some of backward_of_keys do. None of this was timed on a GPU yet.
_BLOCK = 64
OPTIONS = {
    "forward": {"num_warps": 4},
    "backward_of_keys": {"num_warps": 8},
    "backward_of_queries": {"num_warps": 8},
}


def can_run(rows: int, longest: int, width: int) -> bool:
    """Whether the kernels are there and take this head width and so many rows: random draws, each for eight keys of a
    row, are numbered in 31 bits. rows: T * N."""
    return _HAS_TRITON and width in _WIDTHS and rows * -(-longest // 8) < 2**31


def varlen_attention(qkv: Tensor, heads: int, offsets: Tensor, longest: int, dropout: float) -> Tensor:
    """qkv [T, 3, H] -> [T, H]. offsets: int32[S + 1]. dropout: taken to the nearest of 65,536 parts, 0.1 as 0.100006.
    The seed of what is dropped comes from the device's default generator."""
    seed = torch.randint(2**62, (1,), device=qkv.device)
    out: Tensor = _attention(qkv, heads, offsets, longest, dropout, seed)[0]
    return out


@torch.library.custom_op("bertsmith::varlen_attention", mutates_args=())
def _attention(
    qkv: Tensor, heads: int, offsets: Tensor, longest: int, dropout: float, seed: Tensor
) -> tuple[Tensor, Tensor]:
    """[T, H], and the logarithm of each row's sum in base 2: fp32[T, N]."""
    qkv = qkv.contiguous()
    out, lse = _empty_results(qkv, heads)
    _run("forward", (qkv, out, lse, offsets, seed, _dropped(dropout), longest), heads)
    return out, lse


@torch.library.custom_op("bertsmith::varlen_attention_backward", mutates_args=())
def _attention_backward(
    grad_out: Tensor, qkv: Tensor, rows: Tensor, offsets: Tensor, seed: Tensor, where: list[int], dropout: float
) -> Tensor:
    """The gradient of qkv. rows: fp32[2, T, N], the logarithm of each row's sum, and the product of its output and the
    output's gradient. where: N and longest."""
    heads, longest = where
    grad_out, qkv = grad_out.contiguous(), qkv.contiguous()
    grad_qkv = torch.empty_like(qkv)
    arguments = (qkv, grad_out, *rows, grad_qkv, offsets, seed, _dropped(dropout), longest)
    _run("backward_of_keys", arguments, heads)
    _run("backward_of_queries", arguments, heads)
    return grad_qkv


def _dropped(dropout: float) -> int:
    """How many of 65,536 probabilities are dropped; some are kept whatever the rate."""
    return min(round(dropout * 65536), 65535)


def _run(name: str, arguments: tuple[Any, ...], heads: int) -> None:
    """Starts a kernel for every block of the longest sequence, head and sequence. qkv comes first, the offsets, the
    seed, what is dropped and the longest last."""
    from bertsmith.model.triton import kernels as triton_kernels

    qkv, longest, sequences = arguments[0], arguments[-1], len(arguments[-4]) - 1
    grid = (-(-longest // _BLOCK) * heads * sequences,)
    shape = {"HEADS": heads, "D": qkv.shape[-1] // heads, "K": _BLOCK}
    with made_current(qkv.device):
        getattr(triton_kernels, name)[grid](*arguments, **shape, **OPTIONS[name])


def _empty_results(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    tokens, _, hidden = qkv.shape
    return qkv.new_empty(tokens, hidden), qkv.new_empty(tokens, heads, dtype=torch.float32)


@_attention.register_fake
def _(qkv: Tensor, heads: int, offsets: Tensor, longest: int, dropout: float, seed: Tensor) -> tuple[Tensor, Tensor]:
    return _empty_results(qkv, heads)


@_attention_backward.register_fake
def _(
    grad_out: Tensor, qkv: Tensor, rows: Tensor, offsets: Tensor, seed: Tensor, where: list[int], dropout: float
) -> Tensor:
    return torch.empty_like(qkv, memory_format=torch.contiguous_format)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, heads, offsets, longest, dropout, seed = inputs
    ctx.save_for_backward(qkv, offsets, seed, *output)
    ctx.where, ctx.dropout = [heads, longest], dropout


def _backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
    qkv, offsets, seed, out, lse = ctx.saved_tensors
    delta = (out.float() * grad_out.float()).view(*lse.shape, -1).sum(-1)
    grad_qkv = _attention_backward(grad_out, qkv, torch.stack((lse, delta)), offsets, seed, ctx.where, ctx.dropout)
    return grad_qkv, None, None, None, None, None


_attention.register_autograd(_backward, setup_context=_keep_for_backward)
