"""`bertsmith export`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from bertsmith.cli.use import PredictColumns
from bertsmith.cli.verb import Call, Verb


@dataclass(frozen=True)
class ExportFlags:
    """Flags of `export`."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A run, or the folder of a model."""
    out: Path
    """The folder: complete in itself, and written once the graph has given what PyTorch gives."""
    to: Literal["onnx", "openvino", "triton"]
    """onnx and openvino: for --backend of `predict`, `embed` and `evaluate`, and for whatever else reads such graphs.
    triton: a model repository for NVIDIA's Triton Inference Server, with the graph for its ONNX Runtime."""
    int8: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """A graph in int8 too, where it costs no more than --max-loss on --data."""
    data: Path | None = None
    """Labelled rows that the task's metric is measured on, in fp32 and in int8."""
    max_loss: float = 0.01
    """The share of the metric's value in fp32 that int8 may cost: 0.01 lets 90.0 fall to 89.1. Nothing is written where
    it costs more."""
    columns: PredictColumns = field(default_factory=PredictColumns)
    """Where texts and labels stand in --data, if not where they stood in the rows that the model was trained on."""
    few_lengths: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Check some 70 lengths of 512, not every one that the model reads, which takes minutes for a large model."""
    name: str | None = None
    """With --to triton: the model's name in the repository; without it that of --out's last folder."""


def _export(call: Call) -> None:
    flags = call.read(ExportFlags)
    from bertsmith.inference.export.export import ExportOptions, export

    options = {name: value for name, value in vars(flags).items() if name not in ("model", "out", "columns")}
    export(flags.model, flags.out, ExportOptions(**options, columns=flags.columns.given(call.prog)))


VERBS = {
    "export": Verb(
        "Write a model for ONNX Runtime, OpenVINO or Triton, checked against PyTorch.",
        "  bertsmith export runs/labels --to onnx --out labels-onnx\n"
        "  bertsmith export runs/labels --to openvino --int8 --data dev.csv --out labels-openvino\n"
        "  bertsmith predict labels-onnx new.csv --backend onnx --out predictions.jsonl",
        _export,
    ),
}
