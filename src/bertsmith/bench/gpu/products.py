"""The matrix products of a layer at many numbers of slots, run as `python -m bertsmith.bench.gpu.products SPEC`.

A compiled phase has one number of slots, a multiple of 128 that follows from its corpus. Where some of them are slower
than their neighbours, rounding to a larger multiple is worth the slots that it leaves empty.

Legend: T token slots.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor

from bertsmith.base.device import is_on_gpu
from bertsmith.base.log import say
from bertsmith.batches.shapes import TILE
from bertsmith.bench.child import Answer, Ready, serve
from bertsmith.bench.gpu.rows import Part, Rows
from bertsmith.bench.machine import running_on
from bertsmith.bench.process import Child
from bertsmith.bench.step.matrix_rate import seconds_of
from bertsmith.bench.step.plan import SHAPES, GpuSizes
from bertsmith.bench.table import Table


def _of_weights(x: Tensor, weight: Tensor, gradient: Tensor) -> Tensor:
    """In fp32, as a compiled step has them, where PyTorch can: on a GPU."""
    return torch.mm(gradient.T, x, out_dtype=torch.float32) if is_on_gpu(x) else gradient.T @ x


_KINDS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "forward": lambda x, weight, gradient: torch.nn.functional.linear(x, weight, gradient[0]),
    "gradients of inputs": lambda x, weight, gradient: gradient @ weight,
    "of weights": _of_weights,
}
"""Of x [T, in], a weight [out, in] and the gradient [T, out] of what is given, whose first row stands for a bias."""
_SWEEPS, _TIMES = 3, 3
_MOST_EVEN = 8 * TILE
_SECONDS = 10.0


class Worker(Ready):
    """Each public method answers a question."""

    def __init__(self, spec: Answer) -> None:
        """spec: the device, the most slots, and the widths of a layer's hidden states and of its wider ones."""
        self._device = torch.device(spec["device"])
        super().__init__(**running_on(self._device))
        hidden, wide = spec["hidden"], spec["wide"]
        self._weights = [
            self._random(out * width).view(out, width)
            for out, width in ((3 * hidden, hidden), (hidden, hidden), (wide, hidden), (hidden, wide))
        ]
        widest = max(3 * hidden, wide)
        self._x, self._gradient = (self._random(spec["slots"] * widest) for _ in range(2))

    def _random(self, count: int) -> Tensor:
        return torch.randn(count, device=self._device).to(torch.bfloat16)

    def sweep(self, slots: Sequence[int]) -> Answer:
        """Seconds of the four products of each kind, for each number of slots."""
        return {kind: [self._seconds(kind, each) for each in slots] for kind in _KINDS}

    def _seconds(self, kind: str, slots: int) -> float:
        def run() -> None:
            for weight in self._weights:
                out, width = weight.shape
                x, gradient = self._x[: slots * width], self._gradient[: slots * out]
                _KINDS[kind](x.view(slots, width), weight, gradient.view(slots, out))

        run()  # finds kernels and memory
        return seconds_of(self._device, run, _TIMES) / _TIMES


def products_part(sizes: GpuSizes, folder: Path, rows: Rows) -> Part:
    """A row for the first model: all numbers of slots from three quarters of a micro-batch's to all of them."""
    model = sizes.models[0]
    name = f"products of a layer: {model}, bf16"
    hidden, wide = SHAPES[model]["hidden_size"], SHAPES[model]["intermediate_size"]
    slots = list(range(sizes.tokens * 3 // 4, sizes.tokens + 1, TILE))

    def measure(names: Sequence[str], deadline: float) -> None:
        say(f"measuring {name}")
        spec = {"device": sizes.device, "slots": slots[-1], "hidden": hidden, "wide": wide}
        with Child("bertsmith.bench.gpu.products", spec, folder / "products", None, deadline) as child:
            sweeps = [child.ask("sweep", slots=slots) for _ in range(_SWEEPS)]
        seconds = {
            kind: [median(each) for each in zip(*(sweep[kind] for sweep in sweeps), strict=True)] for kind in _KINDS
        }
        flop = [2 * each * hidden * (4 * hidden + 2 * wide) for each in slots]
        rates = {kind: [f / s / 1e12 for f, s in zip(flop, seconds[kind], strict=True)] for kind in _KINDS}
        every = [len(_KINDS) / sum(1 / rate for rate in each) for each in zip(*rates.values(), strict=True)]
        rows.add({"case": name, "teraflops": fmean(every), "slots": slots, **rates, "all": every})

    return Part((name,), measure, _table, _SECONDS)


def _table(found: Sequence[Mapping[str, Any]]) -> Table:
    """By the largest power of two that a number of slots is a multiple of: the mean, and the slowest with its slots."""
    head = ["", "slots a multiple of", "numbers", *(f"{kind}: mean" for kind in (*_KINDS, "all")), "least", "at slots"]
    shown = []
    for row in found:
        multiples = [min(slots & -slots, _MOST_EVEN) for slots in row["slots"]]
        for multiple in sorted({*multiples}):
            places = [place for place, each in enumerate(multiples) if each == multiple]
            slowest = min(places, key=row["all"].__getitem__)
            means = [fmean(row[kind][place] for place in places) for kind in (*_KINDS, "all")]
            cells = [*(f"{mean:,.1f}" for mean in means), f"{row['all'][slowest]:,.1f}", f"{row['slots'][slowest]:,}"]
            shown.append([row["case"].partition(": ")[2], f"{multiple:,}", str(len(places)), *cells])
    return Table("The products of a layer, TFLOP/s", head, shown)


if __name__ == "__main__":
    serve(Worker)
