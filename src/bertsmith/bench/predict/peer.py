"""The peers of a prediction bench, run as `python -m bertsmith.bench.predict.peer SPEC`: transformers' pipeline, and
ONNX Runtime and OpenVINO on the graph that PyTorch exports of transformers' model, with padded rows."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertsmith.bench.child import Answer, Ready, serve
from bertsmith.bench.predict.side import BATCHES, DIRECT, Timer
from bertsmith.inference.backends.engines import check_installed, openvino, openvino_core

GRAPHS = "graphs"
"""Whose process writes the padded graphs, and does nothing else."""
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")
_OPENVINO_TOOL = "nncf"


def start(spec: Answer) -> Ready | Timer:
    """spec: of a `Side` and its `Folders`."""
    if spec["who"] == GRAPHS:
        write_padded(spec["model"], Path(spec["padded"]))
        return Ready()
    return Timer(_direct(spec) if spec["who"] == DIRECT else _pipeline(spec), BATCHES)


def write_padded(model: str, folder: Path) -> None:
    """The graph in fp32, and in int8 what ONNX Runtime's own tool makes of it, and OpenVINO's where it is installed."""
    import transformers
    from onnxruntime.quantization import QuantType, quantize_dynamic

    made = transformers.AutoModelForSequenceClassification.from_pretrained(model).eval()
    ones = torch.ones(2, 7, dtype=torch.long)
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    folder.mkdir(parents=True, exist_ok=True)
    torch.onnx.export(
        made,
        (),
        str(folder / "fp32.onnx"),
        kwargs=dict.fromkeys(_INPUTS, ones),
        input_names=_INPUTS,
        output_names=["logits"],
        dynamic_shapes=dict.fromkeys(_INPUTS, free),
        dynamo=True,
        verbose=False,
    )
    types = {"op_types_to_quantize": ["MatMul", "Gemm"], "weight_type": QuantType.QInt8, "per_channel": True}
    quantize_dynamic(folder / "fp32.onnx", folder / "int8.onnx", **types)
    if importlib.util.find_spec(_OPENVINO_TOOL) is not None:
        engine = openvino()  # before its tool, which would report its use
        import nncf

        compressed = nncf.compress_weights(openvino_core().read_model(folder / "fp32.onnx"))
        engine.save_model(compressed, folder / "int8.xml", compress_to_fp16=False)


def _pipeline(spec: Answer) -> Callable[[list[str], int], object]:
    import transformers

    dtype = torch.bfloat16 if spec["precision"] == "bf16" else torch.float32
    pipe = transformers.pipeline("text-classification", model=spec["model"], device="cpu", dtype=dtype)
    return lambda texts, at_once: pipe(texts, batch_size=at_once, truncation=True)


def _direct(spec: Answer) -> Callable[[list[str], int], object]:
    """Rows as they come, padded to the longest of those that are run together."""
    import transformers

    run = _session(spec) if spec["backend"] == "onnx" else _compiled(spec)
    tokenizer = transformers.AutoTokenizer.from_pretrained(spec["model"])
    options: dict[str, Any] = {"padding": True, "truncation": True, "return_tensors": "np"}

    def call(texts: list[str], at_once: int) -> object:
        found = []
        for first in range(0, len(texts), at_once):
            rows = tokenizer(texts[first : first + at_once], **options)
            found.append(run({name: rows[name].astype(np.int64) for name in _INPUTS}))
        return found

    return call


def _session(spec: Answer) -> Callable[[dict[str, Any]], object]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    path = Path(spec["padded"], f"{spec['precision']}.onnx")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda feed: session.run(None, feed)


def _compiled(spec: Answer) -> Callable[[dict[str, Any]], object]:
    core = openvino_core()
    is_int8 = spec["precision"] == "int8"
    if is_int8:
        check_installed(_OPENVINO_TOOL, "bench")
    hint = "bf16" if spec["precision"] == "bf16" else "f32"
    options = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": hint}
    path = Path(spec["padded"], "int8.xml" if is_int8 else "fp32.onnx")
    request = core.compile_model(str(path), "CPU", options).create_infer_request()
    return lambda feed: request.infer(feed)


if __name__ == "__main__":
    serve(start)
