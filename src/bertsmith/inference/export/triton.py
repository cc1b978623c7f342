"""A model repository of NVIDIA's Triton Inference Server, with the graph for its ONNX Runtime backend.

NAME/config.pbtxt says what goes in and comes out, NAME/1 holds the graph, and NAME/folder all that `bertsmith predict`
needs to make answers of the outputs: the tokenizer, config.json and task.json. What a server does not know beside the
configuration it leaves alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.kinds.pooled import names_of_config
from bertsmith.weights.stored import CONFIG_FILE, EXPORT_FILE

VERSION, GRAPH, LABELS, CONFIG, FOLDER = "1", "model.onnx", "labels.txt", "config.pbtxt", "folder"
MOST_ROWS, DELAY_MICROSECONDS = 64, 1000
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_TYPES: dict[int, str] = {onnx.TensorProto.INT64: "TYPE_INT64", onnx.TensorProto.FLOAT: "TYPE_FP32"}


def check_name(name: str) -> str:
    """Raises BertsmithError for a name that a URL and a folder cannot both have."""
    if not _NAME.fullmatch(name) or name.startswith("."):
        raise BertsmithError(f"'{name}' is no name for a model", "--name", "use letters, digits, '-', '_' and '.'")
    return name


def arrange(exported: Path, name: str, graph: str) -> None:
    """Turns an export to ONNX into a repository of one model. graph: the file of it that is served."""
    model = onnx.load(exported / graph, load_external_data=False)
    parts = [each for each in exported.iterdir() if each.name != EXPORT_FILE]
    served, kept = exported / name / VERSION, exported / name / FOLDER
    served.mkdir(parents=True)
    kept.mkdir()
    for each in parts:
        if each.name == graph:
            each.rename(served / GRAPH)
        elif each.name.startswith(graph):  # weights beside it, under the name that it gives them
            each.rename(served / each.name)
        elif each.suffix in (".onnx", ".data"):
            each.unlink()
        else:
            each.rename(kept / each.name)
    labels = labels_of(files.read_json(kept / CONFIG_FILE))
    if labels:
        files.write_text(exported / name / LABELS, "\n".join(labels) + "\n")
    files.write_text(exported / name / CONFIG, _config(name, model, bool(labels)))


def labels_of(config: Mapping[str, Any]) -> list[str]:
    """Of the columns of `logits`, one a line, in their order. Raises BertsmithError as `names_of_config`."""
    return [name.replace("\n", " ") for name in names_of_config(config)] if config.get("id2label") else []


def _config(name: str, model: onnx.ModelProto, labelled: bool) -> str:
    """The configuration in protobuf's text format. Rows that arrive within a millisecond are run together where they
    have the same length; a client that pads several rows to one length sends them as one request."""
    graph = model.graph
    lines = [f"name: {json.dumps(name)}", 'backend: "onnxruntime"', f"max_batch_size: {MOST_ROWS}"]
    lines += _tensors("input", graph.input, "")
    lines += _tensors("output", graph.output, LABELS if labelled else "")
    lines += ["dynamic_batching {", f"  max_queue_delay_microseconds: {DELAY_MICROSECONDS}", "}"]
    return "\n".join(lines) + "\n"


def _tensors(kind: str, tensors: Sequence[onnx.ValueInfoProto], labels: str) -> list[str]:
    """Dimensions without that of the batch, -1 where they vary."""
    lines = []
    for each in tensors:
        dims = ", ".join(str(dim.dim_value or -1) for dim in each.type.tensor_type.shape.dim[1:])
        lines += [f"{kind} {{", f"  name: {json.dumps(each.name)}"]
        lines += [f"  data_type: {_TYPES[each.type.tensor_type.elem_type]}", f"  dims: [ {dims} ]"]
        lines += [f"  label_filename: {json.dumps(labels)}"] if labels and each.name == "logits" else []
        lines.append("}")
    return lines
