"""Folders that `bertsmith export` writes: what they hold, and which engine runs them at which precision."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.base import files
from bertsmith.base.device import PRECISIONS
from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.log import log_choice
from bertsmith.weights.stored import EXPORT_FILE, stored_files

GRAPH_FILES = {
    "onnx": {"fp32": "model.onnx", "int8": "model_int8.onnx"},
    "openvino": {
        "fp32": "openvino_model.xml",
        "bf16": "openvino_model.xml",
        "int8": "openvino_model_int8.xml",
    },
}
"""The graph that an engine runs at a precision. OpenVINO makes bf16 products of the weights in fp32."""
BACKENDS: dict[str, tuple[str, ...]] = {
    "torch": tuple(each for each in PRECISIONS if each != "auto"),
    **{backend: tuple(graphs) for backend, graphs in GRAPH_FILES.items()},
}
"""The engines, and the precisions that each has."""


@dataclass(frozen=True)
class Graph:
    """The graph of an exported folder that an engine is to run. int8_group: how many numbers of a row OpenVINO
    quantises with one scale in int8."""

    path: Path
    backend: str
    precision: str
    int8_group: int


def check_backend(backend: str, precision: str) -> None:
    """Raises BertsmithError for an engine that is not known, and for a precision that it does not have."""
    if not isinstance(backend, str) or backend not in BACKENDS:
        raise BertsmithError(f"backend '{backend}' is not known", "backend", nearest(backend, BACKENDS))
    if precision not in ("auto", *BACKENDS[backend]):
        pairs = "; ".join(f"{name} in {', '.join(precisions)}" for name, precisions in BACKENDS.items())
        raise BertsmithError(f"{backend} does not run in {precision}", "backend and precision", f"there are: {pairs}")


def graph_in(folder: Path, backend: str, precision: str) -> Graph:
    """The graph of an exported folder. Raises BertsmithError where it has none for this engine and precision."""
    export = f"bertsmith export MODEL --to {backend} --out DIR"
    if not (folder / EXPORT_FILE).is_file():
        what = f"this folder was not written by `bertsmith export`, and {backend} runs no other"
        named = export.replace("MODEL", str(folder)) if stored_files(folder) else export
        raise BertsmithError(what, folder, f"{named}, and name DIR")
    facts = _facts(folder)
    if facts["backend"] != backend:
        what = f"this folder is an export to {facts['backend']}, not to {backend}"
        raise BertsmithError(what, folder, f"use --backend {facts['backend']}, or: {export}")
    if precision == "auto":
        precision = "fp32"
        log_choice("precision", precision, f"{backend} takes another one only where it is named")
    name = GRAPH_FILES[backend][precision]
    if not (folder / name).is_file():
        fix = f"export it again: {export}{' --int8 --data ROWS' if precision == 'int8' else ''}"
        raise BertsmithError(f"this export has no graph in {precision} ({name})", folder, fix)
    return Graph(folder / name, backend, precision, facts["int8_group"])


def _facts(folder: Path) -> dict[str, Any]:
    """What the export says of itself."""
    path, fix = folder / EXPORT_FILE, "export the model again"
    facts = files.read_json(path, fix)
    if (
        not isinstance(facts, dict)
        or facts.get("backend") not in GRAPH_FILES
        or type(facts.get("int8_group")) is not int
    ):
        raise BertsmithError("this file does not describe an export", path, fix)
    return facts
