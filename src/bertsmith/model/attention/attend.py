"""One attention function over packed sequences, with back-ends behind it that tests hold equal.

Legend: T token slots, N heads, D head width, H = N * D.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor

from bertsmith.base.log import log_choice, warn
from bertsmith.model.attention.blocks import block_attention
from bertsmith.model.attention.packed import Offsets, Packed
from bertsmith.model.attention.padded import padded_attention
from bertsmith.model.attention.sequences import sequence_attention
from bertsmith.model.triton import attention as triton_attention

BackEnd = Literal["flash varlen", "Triton varlen", "padded rows", "sequence by sequence", "padded blocks"]
_REASONS: dict[BackEnd, str] = {
    "flash varlen": "half precision on a GPU that has it, no attention dropout",
    "Triton varlen": "half precision, with attention dropout or where it was faster, in kernels of our own",
    "padded rows": "PyTorch's fused kernel, for this device, dtype and dropout",
    "sequence by sequence": "PyTorch's fused kernel, faster for long sequences in fp32 on a CPU",
    "padded blocks": "exact, with few padded slots",
}
# Rows padded to one length may take this many times the slots of the batch before blocks of like lengths are used.
_MOST_PADDING = 2
# Of this mean length on, one sequence after the other takes less time in fp32 on a CPU.
_LONG = 256
_HALVES = (torch.bfloat16, torch.float16)
# FlashAttention-3 (Shah et al., 2024) by PyTorch's name, the package that has it, and the generation that it is for.
_HOPPERS, _PACKAGE, _HOPPER = "FA3", "flash_attn_interface", 9
# The head width of all of Google's models, for which our kernels were timed.
_TIMED_WIDTH = 64


def attend(qkv: Tensor, heads: int, packed: Offsets, dropout: float = 0.0) -> Tensor:
    """Every slot attends to all slots of its own sequence and to no other.

    qkv: [T, 3, H], queries, keys and values. dropout: on the probabilities, 0 outside training. Returns [T, H].
    """
    chosen = back_end(qkv.device, qkv.dtype, heads, qkv.shape[-1] // heads, packed, dropout)
    if not torch.compiler.is_compiling():
        settle(chosen, qkv.device)
    if chosen == "flash varlen":
        return flash_attention(qkv, heads, packed)
    if chosen == "Triton varlen":
        return triton_attention.varlen_attention(qkv, heads, packed.offsets, packed.longest, dropout)
    if chosen == "padded rows":
        return padded_attention(qkv, heads, packed, dropout)
    assert isinstance(packed, Packed)
    if chosen == "sequence by sequence":
        return sequence_attention(qkv, heads, packed.layout)
    return block_attention(qkv, heads, packed.head_blocks(heads), dropout)


def back_end(
    device: torch.device, dtype: torch.dtype, heads: int, width: int, packed: Offsets, dropout: float
) -> BackEnd:
    """The back-end that `attend` takes; a matter of device, dtype, shapes and dropout, never of what a tensor holds.

    width: D.
    """
    on_gpu = device.type == "cuda"
    if on_gpu and dtype in _HALVES and packed.tokens and _is_ampere(device.index):
        ours = dropout or (width == _TIMED_WIDTH and _is_faster_in_ours(device.index))
        if ours and triton_attention.can_run(packed.tokens * heads, packed.longest, width):
            return "Triton varlen"
        if not dropout and width % 8 == 0 and width <= 256:
            return "flash varlen"
    if not isinstance(packed, Packed) or (on_gpu and packed.padded_places <= _MOST_PADDING * packed.tokens):
        return "padded rows"
    if not on_gpu and dtype == torch.float32 and not dropout and 0 < _LONG * packed.sequences <= packed.tokens:
        return "sequence by sequence"
    return "padded blocks"


def settle(chosen: BackEnd, device: torch.device) -> None:
    """What a choice needs before its first use, and its reason in the log, once a process."""
    log_choice("attention", chosen, _REASONS[chosen])
    if chosen == "flash varlen":
        _take_hoppers(device)


@cache
def _take_hoppers(device: torch.device) -> None:
    """Has PyTorch compute flash attention by the kernels for Hopper, where these are installed: by itself it takes
    those for Ampere. Another choice that was made before is left."""
    from torch.nn import attention

    if torch.cuda.get_device_capability(device)[0] != _HOPPER or not _has_package():
        return
    if attention.current_flash_attention_impl() is None and _HOPPERS in attention.list_flash_attention_impls():
        try:
            attention.activate_flash_attention_impl(_HOPPERS)
        except (ImportError, RuntimeError, OSError) as why:  # built for another PyTorch, or without a backward pass
            warn(f"flash attention is PyTorch's for Ampere, {_PACKAGE} cannot be used: {why}")
    log_choice("flash attention", attention.current_flash_attention_impl() or "FA2", f"{_PACKAGE} is installed")


def _is_ampere(device: int | None) -> bool:
    """Whether a GPU is of that generation or a newer one."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def _is_faster_in_ours(device: int | None) -> bool:
    """Whether our kernels are faster than PyTorch's flash attention, which is for Ampere: on Hopper, without the
    package that is for Hopper. Other generations were not timed."""
    is_hopper = torch.version.hip is None and torch.cuda.get_device_capability(device)[0] == _HOPPER
    return is_hopper and not _has_package()


@cache
def _has_package() -> bool:
    return find_spec(_PACKAGE) is not None


# As torch.compiler.assume_constant_result marks them, which imports the compiler: seconds that a prediction waits for.
for _asked in (_is_ampere, _is_faster_in_ours):
    _asked._dynamo_marked_constant = True  # type: ignore[attr-defined]


def flash_attention(qkv: Tensor, heads: int, packed: Offsets) -> Tensor:
    """`attend` by the back-end "flash varlen", on a GPU that has it."""
    from torch.nn.attention.varlen import varlen_attn

    tokens, _, hidden = qkv.shape
    q, k, v = qkv.view(tokens, 3, heads, hidden // heads).unbind(1)
    out = varlen_attn(q, k, v, packed.offsets, packed.offsets, packed.longest, packed.longest)
    assert isinstance(out, Tensor)
    return out.reshape(tokens, hidden)
