"""Graphs as the files that engines read."""

from __future__ import annotations

from pathlib import Path

import onnx

from bertsmith.inference.backends.engines import openvino, openvino_core

EXTERNAL_FROM_BYTES = 1_900_000_000
"""A file of ONNX is one message of protobuf, which holds 2 GiB at most; weights above that lie in a file beside it."""
_BESIDE = ".data"


def write_graph(model: onnx.ModelProto, path: Path) -> int:
    """Writes a graph for ONNX Runtime (.onnx) or for OpenVINO (.xml, with its weights in a .bin). Gives how many bytes
    it takes. Raises OSError where the disk refuses, which `export` turns into a message."""
    if path.suffix == ".onnx":
        _write_onnx(model, path)
    else:
        given = path.with_suffix(".onnx")
        _write_onnx(model, given)
        openvino().save_model(openvino_core().read_model(given), path, compress_to_fp16=False)
        for each in _parts(given):
            each.unlink()
    return sum(each.stat().st_size for each in _parts(path))


def _write_onnx(model: onnx.ModelProto, path: Path) -> None:
    held = sum(len(each.raw_data) for each in model.graph.initializer)
    if held >= EXTERNAL_FROM_BYTES:
        onnx.save_model(model, path, save_as_external_data=True, location=path.name + _BESIDE)
    else:
        onnx.save_model(model, path)


def _parts(path: Path) -> list[Path]:
    """A graph's file, and that of its weights where it has one."""
    beside = path.with_suffix(".bin") if path.suffix == ".xml" else path.with_name(path.name + _BESIDE)
    return [each for each in (path, beside) if each.is_file()]
