"""The verbs that turn models of other programs into ours, and ours into graphs for others: import, export."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import tyro

from bertsmith.cli.use import EvaluateColumns
from bertsmith.cli.verb import Call, Either, Verb, either, import_torch


@dataclass(frozen=True)
class ImportFlags:
    """Flags of `import`."""

    checkpoint: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CHECKPOINT")]
    """A TensorFlow checkpoint (its folder, its prefix or its .index file) or NVIDIA's .pt file."""
    out: Path
    """The model folder."""
    vocab: Path | None = None
    """Its vocab.txt, or a tokenizer's folder. Without it, the one beside the checkpoint."""
    config: Path | None = None
    """Its bert_config.json. Without it, the one beside the checkpoint."""
    lowercase: Either = False
    """Text is lower-cased first. Without it and its opposite, the pieces of the vocabulary decide."""
    no_lowercase: Either = False
    """Text keeps its capital letters and accents."""
    activation: Literal["gelu", "gelu_pytorch_tanh", "relu"] | None = None
    """What the model computes: gelu is erf. Without it, the config decides, and its gelu means the tanh form."""


def _import(call: Call) -> None:
    flags = call.read(ImportFlags)
    lowercase = either(flags, "lowercase", call.prog)
    import_torch()
    from bertsmith.weights.convert import import_checkpoint

    found = import_checkpoint(flags.checkpoint, flags.out, flags.vocab, flags.config, lowercase, flags.activation)
    print(found)


@dataclass(frozen=True)
class ExportFlags:
    """Flags of `export`."""

    model: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A run, or the folder of a model."""
    out: Path
    """The folder: complete in itself, and written once the graph has given what PyTorch gives."""
    to: Literal["onnx", "openvino", "triton"]
    """onnx and openvino: for --backend of `predict`, `embed` and `evaluate`, and for whatever else reads such graphs.
    triton: a model repository for NVIDIA's Triton Inference Server, with the graph for its ONNX Runtime; neither
    that server nor TensorRT has run such a repository yet."""
    int8: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """A graph in int8 too, where it costs no more than --max-loss on --data."""
    data: Path | None = None
    """Labelled rows that the task's metric is measured on, in fp32 and in int8."""
    max_loss: float = 0.01
    """The share of the metric's value in fp32 that int8 may cost: 0.01 lets 90.0 fall to 89.1. Nothing is written where
    it costs more."""
    columns: EvaluateColumns = field(default_factory=EvaluateColumns)
    """Where texts and labels stand in --data, if not where they stood in the rows that the model was trained on."""
    few_lengths: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Check some 70 lengths of 512, not every one that the model reads, which takes minutes for a large model."""
    name: str | None = None
    """With --to triton: the model's name in the repository; without it that of --out's last folder."""


def _export(call: Call) -> None:
    flags = call.read(ExportFlags)
    import_torch()
    from bertsmith.inference.export.export import ExportOptions, export

    options = {name: value for name, value in vars(flags).items() if name not in ("model", "out", "columns")}
    export(flags.model, flags.out, ExportOptions(**options, columns=flags.columns.given(call.prog)))


VERBS = {
    "import": Verb(
        "Make a model folder of a TensorFlow checkpoint of Google's, or of NVIDIA's .pt file; needs no TensorFlow.",
        "  bertsmith import uncased_L-12_H-768_A-12 --out bert-base\n"
        "  bertsmith import ckpt_8601.pt --config bert_config.json --vocab vocab.txt --out bert-large",
        _import,
    ),
    "export": Verb(
        "Write a model for ONNX Runtime, OpenVINO or Triton, checked against PyTorch.",
        "  bertsmith export runs/labels --to onnx --out labels-onnx\n"
        "  bertsmith export runs/labels --to openvino --int8 --data dev.csv --out labels-openvino\n"
        "  bertsmith predict labels-onnx new.csv --backend onnx --out predictions.jsonl",
        _export,
    ),
}
