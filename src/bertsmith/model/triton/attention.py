"""Attention over packed sequences, with or without dropout on the probabilities, in Triton kernels of our own.

Both directions are operators of PyTorch, so a compiled step has them in its graph as they are. The kernels read
queries, keys and values where they lie, and write their gradients so; nothing is padded, and nothing is kept for the
backward pass but one number a row.

Legend: T token slots, S sequences, N heads, D head width, H = N * D.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from bertsmith.base.device import made_current
from bertsmith.model.cpu.masks import threshold_of
from bertsmith.model.triton import HAS_TRITON

_WIDTHS = (16, 32, 64, 128)
_ROWS, _FEWER, _WARPS, _WIDE = 64, 32, 4, 128
# Twice the threads with half the registers each: two such blocks run side by side.
_WHOLE = {"Q": 128, "K": 64, "num_warps": 8, "num_stages": 1, "maxnreg": 128}
# Hopper and the Blackwell of data centres, which have twice the shared memory of a block of the others.
_LARGE = (9, 10)


def how_to_run(kernel: str, width: int, dtype: torch.dtype, generation: int, longest: int) -> dict[str, int]:
    """Rows of a block of queries (Q) and of keys (K), and Triton's options, for rows of D numbers on a GPU of a major
    compute capability; of the backward pass of queries, whether a block has all of a sequence (WHOLE).

    Timed on an H200 alone, in bf16 with rows of 64: no kernel took more than 1.1 times as long as the fastest of 3 to
    12 ways, and with dropout twice the warps took up to 2.3 times as long. Stages are blocks on their way while others
    are worked on: wide rows have less room for them. Other GPUs have less room for keys, and on Ampere registers spill
    with more.
    """
    is_large, is_narrow = generation in _LARGE, width * dtype.itemsize <= _WIDE
    how = {"Q": _ROWS, "K": _ROWS if is_large else _FEWER, "num_warps": _WARPS, "num_stages": 3 if is_narrow else 2}
    if kernel == "backward_of_keys" and is_large:
        how["Q"] = _FEWER
    if kernel != "backward_of_queries":
        return how
    whole = is_large and is_narrow and longest <= _WHOLE["Q"]
    return (_WHOLE if whole else how) | {"WHOLE": whole}


def can_run(rows: int, longest: int, width: int) -> bool:
    """Whether the kernels are there and take this head width and so many rows: random draws, each for eight keys of a
    row, are numbered in 31 bits. rows: T * N."""
    return HAS_TRITON and width in _WIDTHS and rows * -(-longest // 8) < 2**31


def varlen_attention(qkv: Tensor, heads: int, offsets: Tensor, longest: int, dropout: float) -> Tensor:
    """qkv [T, 3, H] -> [T, H]. offsets: int32[S + 1]. dropout: taken to the nearest of 65,536 parts, 0.1 as 0.100006.
    The seed of what is dropped comes from the device's default generator."""
    # Without dropout nothing looks at the seed.
    seed = torch.randint(2**62, (1,), device=qkv.device) if dropout else offsets
    # An operator of PyTorch's costs the host more than the launch, which short predictions wait for. Without it no mode
    # of PyTorch's sees the call.
    plain = not (torch.is_grad_enabled() or torch.compiler.is_compiling())
    return (_forward if plain else _attention)(qkv, heads, offsets, longest, dropout, seed)[0]


def _forward(
    qkv: Tensor, heads: int, offsets: Tensor, longest: int, dropout: float, seed: Tensor
) -> tuple[Tensor, Tensor]:
    qkv = qkv.contiguous()
    out, lse = _empty_results(qkv, heads)
    _run("forward", (qkv, out, lse, offsets, seed, threshold_of(dropout), longest), heads)
    return out, lse


@torch.library.custom_op("bertsmith::varlen_attention", mutates_args=())
def _attention(
    qkv: Tensor, heads: int, offsets: Tensor, longest: int, dropout: float, seed: Tensor
) -> tuple[Tensor, Tensor]:
    """[T, H], and the logarithm of each row's sum in base 2: fp32[T, N]."""
    return _forward(qkv, heads, offsets, longest, dropout, seed)


@torch.library.custom_op("bertsmith::varlen_attention_backward", mutates_args=())
def _attention_backward(
    grad_out: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, offsets: Tensor, seed: Tensor, bounds: list[int]
) -> Tensor:
    """The gradient of qkv. out, lse: what the forward pass gave. bounds: below which draws are dropped, and longest."""
    heads = lse.shape[1]
    grad_out, qkv = grad_out.contiguous(), qkv.contiguous()
    grad_qkv, delta = torch.empty_like(qkv), torch.empty_like(lse)
    arguments = (grad_out, lse, delta, grad_qkv, offsets, seed, *bounds)
    how = _run("backward_of_queries", (qkv, out, *arguments), heads)
    if not how["WHOLE"]:
        _run("backward_of_keys", (qkv, *arguments), heads)
    return grad_qkv


def _run(name: str, arguments: tuple[Any, ...], heads: int) -> dict[str, int]:
    """Starts a kernel for every block of the longest sequence, head and sequence; gives how. qkv comes first, the
    offsets, the seed, what is dropped and the longest last."""
    from bertsmith.model.triton import kernels as triton_kernels

    qkv, dropped, longest, sequences = arguments[0], *arguments[-2:], len(arguments[-4]) - 1
    width = qkv.shape[-1] // heads
    how = how_to_run(name, width, qkv.dtype, _generation(qkv.device), longest)
    rows = how["K" if name == "backward_of_keys" else "Q"]
    grid = (-(-longest // rows) * heads * sequences,)
    with made_current(qkv.device):
        getattr(triton_kernels, name)[grid](*arguments, HEADS=heads, D=width, DROPS=dropped > 0, **how)
    return how


@cache
def _generation(device: torch.device) -> int:
    """0 is none of NVIDIA's. Triton's interpreter, which runs on a CPU, takes what a Hopper takes."""
    if torch.version.hip:
        return 0
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else _LARGE[0]


def _empty_results(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    tokens, _, hidden = qkv.shape
    return qkv.new_empty(tokens, hidden), qkv.new_empty(tokens, heads, dtype=torch.float32)


@_attention.register_fake
def _(qkv: Tensor, heads: int, offsets: Tensor, longest: int, dropout: float, seed: Tensor) -> tuple[Tensor, Tensor]:
    return _empty_results(qkv, heads)


@_attention_backward.register_fake
def _(
    grad_out: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, offsets: Tensor, seed: Tensor, bounds: list[int]
) -> Tensor:
    return torch.empty_like(qkv, memory_format=torch.contiguous_format)


def _keep_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv, _, offsets, longest, dropout, seed = inputs
    ctx.save_for_backward(qkv, *output, offsets, seed)
    ctx.bounds = [threshold_of(dropout), longest]


def _backward(ctx: Any, grad_out: Tensor, grad_lse: Tensor) -> tuple[Tensor | None, ...]:
    return _attention_backward(grad_out, *ctx.saved_tensors, ctx.bounds), None, None, None, None, None


_attention.register_autograd(_backward, setup_context=_keep_for_backward)
