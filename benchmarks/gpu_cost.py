"""What a counted pass is expected to take on an H100: a few shares of its data sheet, the same for every row.

None of these shares has been measured yet. A row is a pass, as `gpu_expected.py` writes it.

Legend: H hidden width, N heads, T token slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bertsmith.training.planning.gpus import GPUS

GPU = GPUS["h100"]
MATRIX_RATE = 0.80
"""Share of the peak that the best product of `make gpu-check` reaches: what aims and results are shares of."""
PRODUCTS = 0.65
"""Share of the peak, for the products of a step."""
FLASH, OWN = 0.25, 0.125
"""Shares of the peak, for PyTorch's flash attention and for our kernels, which draw random numbers for dropout too."""
MEMORY = 0.80
"""Share of the memory's data-sheet rate, for everything that waits for memory."""
LAUNCH_SECONDS = 3e-6
"""The least that a kernel takes on the GPU, its start and end included."""
HOST_SECONDS = 8e-6
"""What the host takes to launch one, while the GPU works on those before."""
CALL_SECONDS = 1.7e-4
"""What it takes to run a graph beside its launches: checks of inputs, and autograd. Measured (decision 019)."""

OWN_ATTENTION, FLASH_ATTENTION = "bertsmith.varlen_attention", "torch_attn._varlen_attn"
# Kernels that an operator launches, where it is more than one.
_OPERATOR_LAUNCHES = {
    f"{OWN_ATTENTION}_backward": 2,  # one for keys and values, one for queries
    f"{FLASH_ATTENTION}_backward": 3,  # sums of outputs times their gradients; all gradients; those of queries to bf16
    "bertsmith.look_up_backward": 8,  # a sort of the ids by digits, a table of zeros, sums over equal ids
}
_PRECISIONS = {"bfloat16": "bf16", "float32": "fp32"}
_WIDTHS = {"bfloat16": 2, "float32": 4}
Row = dict[str, Any]


@dataclass
class Work:
    """Of one part of a pass. flop: of matrix products alone."""

    launches: float = 0
    bytes: float = 0
    flop: float = 0
    seconds: float = 0

    def add(self, launches: float, size: float, flop: float = 0, rate: float = 1.0) -> None:
        """More kernels, which are bound by memory, by products at `rate` FLOP/s, or by their launches."""
        self.launches += launches
        self.bytes += size
        self.flop += flop
        self.seconds += max(size / (MEMORY * GPU.memory_rate), flop / rate, launches * LAUNCH_SECONDS)


def parts(row: Row) -> dict[str, Work]:
    """The work of a pass: fused kernels, products, attention, other operators."""
    found = {"fused": Work(), "products": Work(), "attention": Work(), "others": Work()}
    for launches, size in row["kernels"].values():
        found["fused"].add(launches, size)
    for m, n, k, dtype, added, count in row["products"]:
        size = _WIDTHS[dtype] * (m * k + k * n + m * n + {"": 0, "vector": n, "matrix": m * n}[added])
        found["products"].add(count, count * size, count * 2 * m * n * k, PRODUCTS * GPU.peak(_PRECISIONS[dtype]))
    for name, (calls, size) in row["operators"].items():
        launches = calls * _OPERATOR_LAUNCHES.get(name, 1)
        if name.startswith((OWN_ATTENTION, FLASH_ATTENTION)):
            size, flop = attention(row, name.endswith("_backward"))
            share = OWN if name.startswith(OWN_ATTENTION) else FLASH
            found["attention"].add(launches, calls * size, calls * flop, share * GPU.peak("bf16"))
        else:
            found["others"].add(launches, calls * look_up(row) if "look_up" in name else size)
    return found


def attention(row: Row, backward: bool) -> tuple[float, float]:
    """(bytes, FLOP) of one layer's attention, from shapes: a sequence's keys and values are taken to stay in the cache.

    Forward reads queries, keys and values and writes the output, all bf16 [T, H], and a number a row, fp32 [T, N]; it
    has 2 products with the square of each length. Backward reads these and the output's gradient twice, and writes 3
    gradients; it has 5 products, ours 7, because both of its kernels make the probabilities again.
    """
    tokens, hidden, heads = row["tokens"], row["hidden"], row["heads"]
    wide, narrow = 2 * tokens * hidden, 4 * tokens * heads
    products = (7 if row["attention_dropout"] else 5) if backward else 2
    flop = 2 * products * hidden * row["squared_lengths"]
    return (2 * (4 * wide + 2 * narrow) + 3 * wide if backward else 4 * wide + narrow), flop


def look_up(row: Row) -> float:
    """Bytes of rows of a table by their numbers, or of their gradient: fp32 [T, H] read and written. The gradient's
    zeros, a table of them, are less than a tenth of that at 65,536 slots and are left out."""
    return 2.0 * 4 * row["tokens"] * row["hidden"]


def row_seconds(row: Row) -> float:
    """Of the GPU."""
    return sum(work.seconds for work in parts(row).values())


def host_seconds(row: Row) -> float:
    """Of the host, for all launches and calls of graphs."""
    launches = sum(work.launches for work in parts(row).values())
    return launches * HOST_SECONDS + row["calls"] * CALL_SECONDS


def matrix_rate() -> float:
    """FLOP/s in bf16 that shares are of."""
    return MATRIX_RATE * GPU.peak("bf16")
