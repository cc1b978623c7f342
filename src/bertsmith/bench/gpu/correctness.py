"""Rows of correctness: the largest error of each attention back-end and kernel beside float64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say
from bertsmith.bench.gpu.correctness_run import BLOCKS, FLASH, GRAPH, OURS, PADDED, RESIDUAL, ROWS, STEP, UPDATES
from bertsmith.bench.gpu.rows import Part, Rows
from bertsmith.bench.process import Child, SideFailed
from bertsmith.bench.step.plan import GpuSizes
from bertsmith.bench.table import Table

LIMITS = {"fp32": 2e-5, "bf16": 2e-2, "fp16": 3e-3}
"""The largest errors that rounding explains, in parts of the largest number."""
_DEVIATIONS = 5.0
_KERNEL_SECONDS, _STEP_SECONDS, _GRAPH_SECONDS, _RESIDUAL_SECONDS = 30.0, 20.0, 5.0, 10.0
_TITLE = "The largest error beside float64, in parts of the largest number"


def correctness_parts(sizes: GpuSizes, folder: Path, rows: Rows, tiny: bool) -> list[Part]:
    """A row for each kernel, dtype and attention dropout; then for the compiled step, by single launches and as CUDA
    graphs, and for the end of half a block, with dropout. tiny: at sizes for Triton's interpreter, which has no bf16,
    where there is no GPU."""
    on_gpu = sizes.device != "cpu"
    halves = ("bf16", "fp16") if on_gpu else ("fp16",)
    kernels = [(FLASH, dtype, 0.0) for dtype in halves] if on_gpu else []
    kernels += [(kernel, dtype, dropout) for kernel in OURS for dtype in halves for dropout in (0.0, 0.1)]
    kernels += [(PADDED, dtype, dropout) for dtype in ("fp32", *halves) for dropout in (0.0, 0.1)]
    kernels += [(BLOCKS, "fp32", dropout) for dropout in (0.0, 0.1)]  # the only dtype in which a GPU takes it
    kernels += [(ROWS, "fp32", 0.0), *((name, "fp32", 0.0) for name in UPDATES)]
    dtypes = ("bf16", "fp32")
    steps = [(kernel, dtype, 0.0) for kernel in (STEP, GRAPH) for dtype in dtypes]
    steps += [(RESIDUAL, "bf16", 0.1)]
    # Step and graphs run the same kernels, which are compiled once.
    step_seconds = len(dtypes) * (_STEP_SECONDS + _GRAPH_SECONDS) + _RESIDUAL_SECONDS
    return [
        _part(kernels, sizes, folder / "kernels", rows, tiny, _KERNEL_SECONDS),
        _part(steps, sizes, folder / "compiled-step", rows, tiny, step_seconds),
    ]


def _part(
    cases: Sequence[tuple[str, str, float]], sizes: GpuSizes, folder: Path, rows: Rows, tiny: bool, seconds: float
) -> Part:
    named = {}
    for kernel, dtype, p in cases:
        dropout = "dropout" if kernel == RESIDUAL else "attention dropout"
        named[f"correctness: {kernel}, {dtype}, {dropout} {p:g}"] = kernel, dtype, p
    spec = {"device": sizes.device, "compiled": sizes.compiled, "tiny": tiny}
    environment = {"TRITON_INTERPRET": "1"} if sizes.device == "cpu" else {}

    def measure(names: Sequence[str], deadline: float) -> None:
        for turn in range(len(names)):
            left = rows.missing(names)
            if not left:
                return
            # A new process after one that failed: an error of a kernel's may leave the GPU useless to its process.
            with Child("bertsmith.bench.gpu.correctness_run", spec, folder / str(turn), environment, deadline) as child:
                _measure(child, [(name, *named[name]) for name in left], rows)

    return Part(tuple(named), measure, _table, seconds)


def _measure(child: Child, cases: Sequence[tuple[str, str, str, float]], rows: Rows) -> None:
    """Adds a row for each, up to one that ends the process."""
    for name, kernel, dtype, dropout in cases:
        say(f"measuring {name}")
        try:
            found = child.ask("error", kernel=kernel, dtype=dtype, dropout=dropout)
        except BertsmithError as why:
            rows.fail(name, why.what)
            if isinstance(why, SideFailed) and child.is_alive:
                continue
            return
        rows.add({"case": name, **found, "limit": LIMITS[dtype], "within": _within(found, LIMITS[dtype])})


def _within(found: dict[str, Any], limit: float) -> bool:
    """Whether all is as rounding and chance explain it; NaN is not, nor is a graph that is not taken."""
    errors = [found["forward_error"], *([] if found["backward_error"] is None else [found["backward_error"]])]
    explained = all(error <= limit for error in errors) and found.get("kept_deviations", 0.0) <= _DEVIATIONS
    return explained and "refused" not in found


def _table(found: Sequence[dict[str, Any]]) -> Table:
    shown = [
        [
            row["case"].partition(": ")[2],
            f"{row['forward_error']:.1e}",
            "-" if row["backward_error"] is None else f"{row['backward_error']:.1e}",
            f"{row['limit']:.0e}",
            f"{row['kept']:.2%}" if "kept" in row else "-",
            "yes" if row["within"] else "NO",
        ]
        for row in found
    ]
    return Table(_TITLE, ["", "forward", "backward", "limit", "probabilities kept", "within"], shown)
