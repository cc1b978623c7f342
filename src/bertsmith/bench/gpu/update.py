"""The optimizer's update alone, run as `python -m bertsmith.bench.gpu.update SPEC`: time and bytes moved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from bertsmith.base.log import say
from bertsmith.bench.child import Answer, Ready, serve
from bertsmith.bench.fresh import fresh
from bertsmith.bench.gpu.rows import Part, Rows
from bertsmith.bench.machine import running_on
from bertsmith.bench.process import Child
from bertsmith.bench.step.matrix_rate import seconds_of
from bertsmith.bench.step.ours import RATE, WEIGHT_DECAY
from bertsmith.bench.step.plan import GpuSizes, gpu_shape
from bertsmith.bench.table import Table
from bertsmith.model.config import BertConfig
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb

_KINDS = {"LAMB": Lamb, "AdamW": AdamW}
FLOATS = {"LAMB": 11, "AdamW": 8}
"""The fp32 numbers that an update must move for each parameter, at the least. Both: the gradient once for the global
norm; then gradient, weight and two moments in, two moments out. AdamW: the weight out. LAMB: once the norms of its
tensor are known, weight and moments in again, and the weight out."""
_TURNS, _UPDATES = 9, 10
_SECONDS = 12.0
_TITLE = "The optimizer's update alone: fp32 weights, gradients and moments, clipped by their global norm"


class Worker(Ready):
    """Each public method answers a question. It says first what it runs on, and how many parameters there are."""

    def __init__(self, spec: Answer) -> None:
        """spec: fields of a `BertConfig`, a key of `FLOATS`, and a device."""
        self._device = torch.device(spec["device"])
        model = fresh(lambda: PretrainingModel(BertConfig(**spec["model"])), self._device)
        optimizer = _KINDS[spec["optimizer"]](parameter_groups(model, WEIGHT_DECAY))
        optimizer.set_learning_rate(RATE)
        for each in model.parameters():
            each.grad = torch.randn_like(each)
        self._update = optimizer.step
        super().__init__(**running_on(self._device), parameters=sum(each.numel() for each in model.parameters()))

    def turn(self, updates: int) -> Answer:
        """The seconds of so many updates, one after the other; the device is waited for at both ends."""
        return {"seconds": seconds_of(self._device, self._update, updates)}


def update_parts(sizes: GpuSizes, folder: Path, rows: Rows) -> list[Part]:
    """A row for each optimizer over the first model."""
    return [_part(sizes, optimizer, folder / f"update-{optimizer}", rows) for optimizer in FLOATS]


def _part(sizes: GpuSizes, optimizer: str, folder: Path, rows: Rows) -> Part:
    model = sizes.models[0]
    name = f"update alone: {model}, {optimizer}"

    def measure(names: Sequence[str], deadline: float) -> None:
        say(f"measuring {name}")
        dims = gpu_shape(model, sizes.vocabulary)
        spec = {"model": dims, "optimizer": optimizer, "device": sizes.device}
        with Child("bertsmith.bench.gpu.update", spec, folder, None, deadline) as child:
            parameters = int(child.ready()["parameters"])
            child.ask("turn", updates=1)
            turns = [float(child.ask("turn", updates=_UPDATES)["seconds"]) / _UPDATES for _ in range(_TURNS)]
        seconds, moved = median(turns), 4 * FLOATS[optimizer] * parameters
        row = {"case": name, "milliseconds": 1e3 * seconds, "parameters": parameters, "bytes": moved}
        rows.add({**row, "bytes_per_second": moved / seconds, "seconds": turns})

    return Part((name,), measure, _table, _SECONDS)


def _table(found: Sequence[dict[str, Any]]) -> Table:
    shown = [
        [
            row["case"],
            f"{row['milliseconds']:,.2f}",
            f"{row['parameters']:,}",
            f"{row['bytes'] / row['parameters']:.0f}",
            f"{row['bytes_per_second'] / 1e9:,.1f}",
        ]
        for row in found
    ]
    return Table(_TITLE, ["", "ms", "parameters", "bytes a parameter, at the least", "GB/s"], shown)


if __name__ == "__main__":
    serve(Worker)
