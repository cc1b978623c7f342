"""Attention of ragged sequences on a CPU, forward and backward, by every exact way that PyTorch offers.

`python benchmarks/attention_on_cpu.py`: by it, `model/attention/attend.py` can be chosen anew on another processor.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from bertsmith.base.layout import Layout
from bertsmith.bench.step.made_batches import lengths_of
from bertsmith.model.attention.blocks import block_attention
from bertsmith.model.attention.packed import Packed
from bertsmith.model.attention.sequences import sequence_attention

HEADS, WIDTH = 12, 64
ROUNDS = 9
Way = Callable[[Tensor, Layout, Packed], Tensor]


def blocks(qkv: Tensor, layout: Layout, packed: Packed) -> Tensor:
    return block_attention(qkv, HEADS, packed.head_blocks(HEADS), 0.0)


def one_by_one(qkv: Tensor, layout: Layout, packed: Packed) -> Tensor:
    return sequence_attention(qkv, HEADS, layout)


def equal_lengths(qkv: Tensor, layout: Layout, packed: Packed) -> Tensor:
    out = torch.empty_like(qkv[:, 0])
    for length in np.unique(layout.lengths):
        rows = layout.first_slots[layout.lengths == length][:, None] + np.arange(length)
        slots = torch.from_numpy(rows)
        out = out.index_put((slots,), attended(qkv[slots]))
    return out


def padded(qkv: Tensor, layout: Layout, packed: Packed) -> Tensor:
    real = torch.from_numpy(np.arange(layout.longest) < layout.lengths[:, None])
    rows = qkv.new_zeros(layout.sequences, layout.longest, *qkv.shape[1:]).index_put((real,), qkv)
    return attended(rows, real[:, None, None, :])[real]


def nested(qkv: Tensor, layout: Layout, packed: Packed) -> Tensor:
    offsets = torch.from_numpy(layout.offsets)
    parts = [torch.nested.nested_tensor_from_jagged(part, offsets) for part in qkv.unbind(1)]
    q, k, v = (part.unflatten(-1, [HEADS, WIDTH]).transpose(1, 2) for part in parts)
    return scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2).values()


def attended(qkv: Tensor, mask: Tensor | None = None) -> Tensor:
    """[S, L, 3, H] -> [S, L, H] through PyTorch's fused attention."""
    q, k, v = (part.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for part in qkv.unbind(2))
    return scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(-2)


WAYS: dict[str, Way] = {
    "padded blocks, two products and a softmax": blocks,
    "SDPA, one padded block": padded,
    "SDPA, groups of equal length": equal_lengths,
    "SDPA, sequence by sequence": one_by_one,
    "SDPA, nested tensors": nested,
}


def main() -> None:
    """Prints the median CPU milliseconds of each way, in turns."""
    told = argparse.RawDescriptionHelpFormatter
    argparse.ArgumentParser(description=__doc__, formatter_class=told).parse_args()
    torch.manual_seed(0)
    for dtype in (torch.bfloat16, torch.float32):
        for longest, sequences in ((128, 16), (512, 16)):
            layout = Layout.from_lengths(lengths_of("ragged", sequences, longest))
            qkv = torch.randn(layout.tokens, 3, HEADS * WIDTH).to(dtype).requires_grad_()
            down = torch.randn(layout.tokens, HEADS * WIDTH).to(dtype)
            taken: dict[str, list[float]] = {name: [] for name in WAYS}
            for _ in range(ROUNDS):
                for name, way in WAYS.items():
                    qkv.grad = None
                    start = time.process_time()
                    try:
                        way(qkv, layout, Packed(layout)).backward(down)
                    except RuntimeError:  # no back-end for it on this device
                        continue
                    taken[name].append(1e3 * (time.process_time() - start))
            for name, each in taken.items():
                found = f"{np.median(each):8.1f} ms" if each else "PyTorch has no back-end for it here"
                print(f"{dtype}  {sequences} of {longest * 40 // 128}-{longest}  {name:45}  {found}")


if __name__ == "__main__":
    main()
