"""What a counted pass is expected to take on a GPU: a few shares of its data sheet, the same for every row.

The shares of attention follow from a measurement on an H200; the others were assumed before it, and left. A row is a
pass, as `gpu_expected.py` writes it, counted for an H100; an H200 is taken to launch the same.

Legend: H hidden width, N heads, T token slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertsmith.training.planning.gpus import GPUS, Gpu

GPU = GPUS["h100"]
MATRIX_RATE = 0.80
"""Share of the peak that the best product of `make gpu-check` reaches: what aims and results are shares of."""
PRODUCTS = 0.65
"""Share of the peak, for the products of a step."""
ATTENTION, DROPPING = 0.25, 0.17
"""Shares of the peak, for our kernels of attention, about halfway between those at 128 and at 512; the second with
dropout."""
MEMORY = 0.80
"""Share of the memory's data-sheet rate, for everything that waits for memory."""
DRAWS = 2e11
"""Calls of Philox a second, with what else dropout costs: by the 42 us that attention at 128 took longer with dropout
on an H200, for 8.4 million."""
LAUNCH_SECONDS = 3e-6
"""The least that a kernel takes on the GPU, its start and end included."""
HOST_SECONDS = 8e-6
"""What the host takes to launch one, while the GPU works on those before."""
CALL_SECONDS = 1.7e-4
"""What it takes to run a graph beside its launches: checks of inputs, and autograd. Measured (decision 019)."""

GRAPH_SECONDS = 2e-4
"""What the host takes for a micro-batch that is one CUDA graph."""

ATTENTION_OPERATOR = "bertsmith.varlen_attention"
ONE_BLOCK = 128
"""The longest sequence whose queries are one block of the backward pass."""
DRAWING_OPERATOR = "bertsmith.kept_bits"
# Kernels that an operator launches, where it is more than one.
_OPERATOR_LAUNCHES = {
    "bertsmith.look_up_backward": 8,  # a sort of the ids by digits, a table of zeros, sums over equal ids
}
Row = dict[str, Any]
FORWARD, BACKWARD = "losses forward", "losses backward"
EAGER, CALL = "step", "call"
"""Forward and backward of what is not compiled, and a call of inference."""
SUMMED = ("launches", "bytes", "flop")


@dataclass
class Work:
    """Of one part of a pass on a GPU. flop: of matrix products alone."""

    gpu: Gpu = GPU
    launches: float = 0
    bytes: float = 0
    flop: float = 0
    seconds: float = 0

    def add(self, launches: float, size: float, flop: float = 0, rate: float = 1.0) -> None:
        """More kernels, which are bound by memory, by products at `rate` FLOP/s, or by their launches."""
        self.launches += launches
        self.bytes += size
        self.flop += flop
        self.seconds += max(size / (MEMORY * self.gpu.memory_rate), flop / rate, launches * LAUNCH_SECONDS)


def parts(row: Row, gpu: Gpu = GPU) -> dict[str, Work]:
    """The work of a pass: fused kernels, products, attention, other operators."""
    found = {name: Work(gpu) for name in ("fused", "products", "attention", "others")}
    for launches, size in row["kernels"].values():
        found["fused"].add(launches, size)
    for m, n, k, dtype, size, count in row["products"]:
        peak = gpu.peak(_precision(row, dtype))
        found["products"].add(count, count * size, count * 2 * m * n * k, PRODUCTS * peak)
    for name, (calls, size) in row["operators"].items():
        launches = calls * _OPERATOR_LAUNCHES.get(name, 1)
        if name.startswith(ATTENTION_OPERATOR):
            size, flop = attention(row, name.endswith("_backward"))
            if name.endswith("_backward") and row["length"] > ONE_BLOCK:
                launches *= 2  # one for queries, one for keys and values
            share = DROPPING if row["attention_dropout"] else ATTENTION
            peak = gpu.peak(row.get("precision", "bf16"))
            found["attention"].add(launches, calls * size, calls * flop, share * peak)
        elif name == DRAWING_OPERATOR:
            found["others"].add(launches, size)
            found["others"].seconds += size / DRAWS  # a call for every byte that is written
        else:
            found["others"].add(launches, calls * look_up(row) if "look_up" in name else size)
    return found


def _precision(row: Row, dtype: str) -> str:
    """Of a product: the row's says which of two fp32 has."""
    return "bf16" if dtype == "bfloat16" else "tf32" if row.get("precision") == "tf32" else "fp32"


def attention(row: Row, backward: bool) -> tuple[float, float]:
    """(bytes, FLOP) of one layer's attention, from shapes: a sequence's keys and values are taken to stay in the cache.

    Forward reads queries, keys and values and writes the output, all [T, H] in the dtype of products, and a number a
    row, fp32 [T, N]; it has 2 products with the square of each length. Backward reads these and the output's gradient,
    and writes 3 gradients, with 5 products. Where a sequence is longer than a block of queries it has two kernels, of
    which both make the probabilities again: 7 products, and all but the output is read twice.
    """
    tokens, hidden, heads = row["tokens"], row["hidden"], row["heads"]
    number = 2 if row.get("precision", "bf16") == "bf16" else 4
    wide, narrow = number * tokens * hidden, 4 * tokens * heads
    two = row["length"] > ONE_BLOCK
    products = (7 if two else 5) if backward else 2
    flop = 2 * products * hidden * row["squared_lengths"]
    return ((12 * wide + 4 * narrow if two else 8 * wide + narrow) if backward else 4 * wide + narrow), flop


def look_up(row: Row) -> float:
    """Bytes of rows of a table by their numbers, or of their gradient: fp32 [T, H] read and written. The gradient's
    zeros, a table of them, are less than a tenth of that at 65,536 slots and are left out."""
    return 2.0 * 4 * row["tokens"] * row["hidden"]


def summed(row: Row) -> Row:
    """The row with launches, bytes and FLOP by part, for a reader of the file."""
    work = parts(row)
    sums = {what: {name: round(getattr(each, what)) for name, each in work.items()} for what in SUMMED}
    return {**row, **sums}


def row_seconds(row: Row, gpu: Gpu = GPU) -> float:
    """Of the GPU."""
    return sum(work.seconds for work in parts(row, gpu).values())


def host_seconds(row: Row) -> float:
    """Of the host, for all launches and calls of graphs."""
    launches = sum(work.launches for work in parts(row).values())
    return launches * HOST_SECONDS + row["calls"] * CALL_SECONDS


def matrix_rate(gpu: Gpu = GPU) -> float:
    """FLOP/s in bf16 that shares are of."""
    return MATRIX_RATE * gpu.peak("bf16")


@dataclass(frozen=True)
class Times:
    """Seconds of one micro-batch and its update. parts: of the GPU, by what it does. gpu, host: of either for all of
    it; the host runs ahead of the GPU and waits for nothing, so the slower one decides. batch: without the update."""

    parts: dict[str, float]
    gpu: float
    host: float
    batch: float

    @property
    def step(self) -> float:
        return max(self.gpu, self.host)


def times(passes: Sequence[Row], update: Row | None, gpu: Gpu = GPU, graph: bool = False) -> Times:
    """Of the passes of a micro-batch. graph: they are one CUDA graph."""
    each = [parts(row, gpu) for row in passes]
    found = {name: sum(work[name].seconds for work in each) for name in ("products", "attention", "fused", "others")}
    host = GRAPH_SECONDS if graph else sum(map(host_seconds, passes))
    of_batch = sum(found.values())
    found["update"] = row_seconds(update, gpu) if update else 0.0
    host_of_all = host + (host_seconds(update) if update else 0.0)
    return Times(found, sum(found.values()), host_of_all, max(of_batch, host))


MEASURED = "AdamW"
"""The optimizer of the rows of `make gpu-check`."""
CARDS = ("h100", "h200")


def expectations(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """What the rows of `make gpu-check` are expected to show, by name: `figure`, which of their figures, `what` that
    is, and how it is printed `as`; its value by card, and milliseconds by what they are for."""
    found: dict[str, dict[str, Any]] = {}
    updates = {
        (row["model"], row["graph"].partition(", ")[2]): row for row in rows if row["graph"].startswith("update")
    }
    for (model, optimizer), row in updates.items():
        seconds = {card: max(row_seconds(row, GPUS[card]), host_seconds(row)) for card in CARDS}
        milliseconds = {card: 1e3 * value for card, value in seconds.items()}
        about = {"figure": "milliseconds", "what": "ms", "as": ",.2f"}
        found[f"update alone: {model}, {optimizer}"] = {**about, **milliseconds}
    model = rows[0]["model"]
    rates = {card: PRODUCTS * GPUS[card].peak("bf16") / 1e12 for card in CARDS}
    found[f"products of a layer: {model}, bf16"] = {"figure": "teraflops", "what": "TFLOP/s", "as": ",.0f", **rates}
    passes: dict[str, list[Row]] = {}
    for row in rows:
        if "case" in row:
            passes.setdefault(row["case"], []).append(row)
    for group in passes.values():
        for name, graph in group[0]["rows"]:
            found[name] = _expectation(group, updates.get((group[0]["model"], MEASURED)), graph)
    return found


def _expectation(group: Sequence[Row], update: Row | None, graph: bool) -> dict[str, Any]:
    is_call = group[0]["graph"] == CALL
    each = {card: times(group, None if is_call else update, GPUS[card], graph) for card in CARDS}
    figure = {
        card: 1e3 * found.step if is_call else group[0]["real_tokens"] / found.step for card, found in each.items()
    }
    about = ("p50_ms", "ms", ",.2f") if is_call else ("ours", "real tokens/s", ",.0f")
    details = {
        card: {name: 1e3 * value for name, value in {**found.parts, "GPU": found.gpu, "host": found.host}.items()}
        for card, found in each.items()
    }
    return {**dict(zip(("figure", "what", "as"), about, strict=True)), **figure, "milliseconds": details}
