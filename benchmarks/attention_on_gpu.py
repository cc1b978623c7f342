"""Attention on a GPU in bf16, forward and backward: PyTorch's flash attention and our kernels, as BERT-large has it.

`run --out FILE` times each with several blocks and warps, and writes each row as it is made; `table FILE` prints what
was found. By it, `model/attention/attend.py` and `model/triton/attention.py` can be chosen anew on another GPU. A
figure is the median of Triton's `do_bench`, in microseconds. Kernels are launched alone; "operator" is all that an
uncompiled step does, where it may be the host that is timed.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from bertsmith.base.files import read_json, write_json
from bertsmith.base.layout import Layout
from bertsmith.base.tables import aligned
from bertsmith.bench.machine import machine
from bertsmith.bench.step.made_batches import lengths_of
from bertsmith.model.attention.attend import flash_attention
from bertsmith.model.attention.packed import Packed
from bertsmith.model.cpu.masks import threshold_of
from bertsmith.model.triton import attention

HEADS, WIDTH = 16, 64
SETS = {
    "256 full at 128": ("full", 256, 128),
    "256 with Wikipedia's lengths at 128": ("wikipedia", 256, 128),
    "64 full at 512": ("full", 64, 512),
    "64 with Wikipedia's lengths at 512": ("wikipedia", 64, 512),
}
BACKWARD = "backward_of_queries"
KERNELS: dict[str, tuple[str, dict[str, bool]]] = {
    "forward": ("forward", {}),
    "backward_of_keys": ("backward_of_keys", {}),
    BACKWARD: (BACKWARD, {"WHOLE": False}),
    f"{BACKWARD}, and of keys": (BACKWARD, {"WHOLE": True}),
}
"""Each by its name, with what else it is given."""
BLOCKS = [(64, 64), (64, 32), (64, 128), (32, 64), (128, 64)]
WAYS = [(q, k, warps, stages) for q, k in BLOCKS for warps in (4, 8) for stages in (2, 3)]
WHOLE_WAYS = [(128, k, warps, stages) for k in (32, 64, 128) for warps in (4, 8) for stages in (1, 2, 3)]
REGISTERS = (0, 128)
"""The most of a thread, with 8 warps; 0 for as many as the compiler takes."""
Row = dict[str, Any]


def microseconds(work: Callable[[], object]) -> float:
    from triton.testing import do_bench

    return 1000 * float(do_bench(work, warmup=5, rep=20, return_mode="median"))


def rows_of(name: str, dropout: float, device: str = "cuda", dtype: torch.dtype = torch.bfloat16) -> Iterator[Row]:
    """A row of PyTorch's, where it has the dropout; then one of each of our kernels and ways to run it, which says why
    it "failed" where it did."""
    from triton.runtime.errors import OutOfResources

    kind, sequences, longest = SETS[name]
    packed = Packed(Layout.from_lengths(lengths_of(kind, sequences, longest), longest), device)
    qkv = torch.randn(packed.tokens, 3, HEADS * WIDTH, device=device, dtype=dtype)
    by_out = torch.randn(packed.tokens, HEADS * WIDTH, device=device, dtype=dtype)
    about = {"set": name, "dropout": dropout}
    if not dropout:
        own = qkv.clone().requires_grad_()
        out = flash_attention(own, HEADS, packed)
        yield {**about, "kernel": "flash forward", "us": microseconds(lambda: flash_attention(own, HEADS, packed))}
        backward = microseconds(lambda: torch.autograd.grad(out, own, by_out, retain_graph=True))
        yield {**about, "kernel": "flash backward, gradients joined", "us": backward}
    own = qkv.clone().requires_grad_()
    whole = partial(attention.varlen_attention, own, HEADS, packed.offsets, packed.longest, dropout)
    yield {**about, "kernel": "operator, forward", "us": microseconds(whole)}
    out = whole()
    backward = microseconds(lambda: torch.autograd.grad(out, own, by_out, retain_graph=True))
    yield {**about, "kernel": "operator, backward", "us": backward}
    arguments = arguments_of(qkv, by_out, packed, dropout)
    for kernel, (function, more) in KERNELS.items():
        for how in ways_of(more, packed.longest):
            with mock.patch.object(attention, "how_to_run", return_value=how | more):
                try:
                    taken = microseconds(partial(attention._run, function, arguments[function], HEADS))
                except (OutOfResources, RuntimeError) as why:  # of Triton's compiler, or of the GPU
                    print(f"{name}, {kernel}, {how}: {type(why).__name__}: {why}", flush=True)
                    yield {**about, "kernel": kernel, **how, "failed": f"{type(why).__name__}: {why}"}
                    continue
            yield {**about, "kernel": kernel, **how, "us": taken}


def ways_of(more: dict[str, bool], longest: int) -> list[dict[str, int]]:
    """A kernel's, for sequences of up to `longest`; more: what else it is given."""
    whole = bool(more.get("WHOLE"))
    ways = [
        {"Q": q, "K": k, "num_warps": warps, "num_stages": stages} | ({"maxnreg": most} if most else {})
        for q, k, warps, stages in (WHOLE_WAYS if whole else WAYS)
        for most in (REGISTERS if whole and warps == 8 else (0,))
    ]
    return [way for way in ways if not whole or way["Q"] >= longest]


def arguments_of(qkv: Tensor, by_out: Tensor, packed: Packed, dropout: float) -> dict[str, tuple[Any, ...]]:
    """What each kernel is given."""
    seed = torch.randint(2**62, (1,), device=qkv.device)
    out, lse = attention._empty_results(qkv, HEADS)
    last = (packed.offsets, seed, threshold_of(dropout), packed.longest)
    attention._run("forward", (qkv, out, lse, *last), HEADS)
    backward = (by_out, lse, torch.zeros_like(lse), torch.empty_like(qkv), *last)
    return {"forward": (qkv, out, lse, *last), "backward_of_keys": (qkv, *backward), BACKWARD: (qkv, out, *backward)}


def table(rows: list[Row]) -> list[str]:
    """PyTorch's, and of each of our kernels the fastest way, the next and the slowest."""
    head = ["", "dropout", "kernel", "us", "fastest with", "then", "the slowest"]
    shown = []
    for key in dict.fromkeys((row["set"], row["dropout"], row["kernel"]) for row in rows):
        ways = sorted(
            (row for row in rows if (row["set"], row["dropout"], row["kernel"]) == key), key=lambda row: row["us"]
        )
        fastest, others = ways[0], [f"{row['us'] / ways[0]['us']:.2f}x {said(row)}" for row in ways[1:]]
        cells = [said(fastest), others[0], others[-1]] if others else ["", "", ""]
        shown.append([key[0], f"{key[1]:g}", key[2], f"{fastest['us']:.0f}", *cells])
    return aligned([head, *shown], "llrlll")


def said(row: Row) -> str:
    """Such as "64 x 32, 4 warps, 3 stages"."""
    if "Q" not in row:
        return ""
    most = f", {row['maxnreg']} registers" if "maxnreg" in row else ""
    return f"{row['Q']} x {row['K']}, {row['num_warps']} warps, {row['num_stages']} stages{most}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("run").add_argument("--out", type=Path, required=True, help="a file for the rows")
    verbs.add_parser("table").add_argument("rows", type=Path)
    asked = parser.parse_args()
    if asked.verb == "table":
        stored = read_json(asked.rows)
        print("\n".join([*table(stored["rows"]), *([f"note: {stored['note']}"] if "note" in stored else [])]))
        return
    about = {"command": "python benchmarks/attention_on_gpu.py run", "gpu": torch.cuda.get_device_name()}
    about |= {"torch": torch.__version__, "machine": machine()}
    rows: list[Row] = []
    failed: list[Row] = []
    for name, dropout in itertools.product(SETS, (0.0, 0.1)):
        for row in rows_of(name, dropout):
            (failed if "failed" in row else rows).append(row)
            write_json(asked.out, {**about, "rows": rows, "failed": failed})


if __name__ == "__main__":
    main()
