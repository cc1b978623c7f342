"""The engines: each gives a function that runs a graph on padded rows.

Legend: B rows, L columns.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import warn
from bertsmith.base.processor import this_processor
from bertsmith.inference.backends.exported import Graph

Feed = Mapping[str, NDArray[np.int64]]
Run = Callable[[Feed], dict[str, NDArray[np.float32]]]
"""From int64[B, L] by the names of `bert.INPUTS` to its outputs by theirs; several threads may call it at a time."""


PACKAGES = {"onnx": "onnxruntime", "openvino": "openvino"}
"""What each engine is imported by."""


def open_graph(graph: Graph) -> Run:
    """The graph, ready to be run with as many threads as PyTorch has. Raises BertsmithError where the engine cannot
    read the file. Whether the engine is installed is to be asked first (`check_installed`)."""
    try:
        return _OPENERS[graph.backend](graph)
    except Exception as error:  # each engine has exceptions of its own for files that are broken
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        what = f"{graph.backend} cannot read this graph ({reason})"
        raise BertsmithError(what, graph.path, "export the model again") from error


def check_installed(package: str, extra: str) -> None:
    """Raises BertsmithError where an optional package is missing. extra: of ours, that brings it."""
    if importlib.util.find_spec(package) is None:
        raise BertsmithError(f"{package} is not installed", extra, f"pip install 'bertsmith[{extra}]'")


def _open_onnx(graph: Graph) -> Run:
    import onnxruntime

    onnxruntime.disable_telemetry_events()  # some builds for Windows have them
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    options.enable_mem_pattern = False  # it keeps one for every shape that comes
    options.log_severity_level = 3
    if graph.precision == "int8" and not this_processor().vnni:
        # The usual 8-bit products overflow there. With VNNI they are exact, and with this entry 2.65 times slower.
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(str(graph.path), options, providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_outputs()]
    return lambda feed: dict(zip(names, session.run(names, dict(feed)), strict=True))


def openvino() -> Any:
    """The package. Its import sends an event to its maker, which openvino_telemetry does; without that it does not."""
    if "openvino" not in sys.modules:
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    return importlib.import_module("openvino")


@functools.cache
def openvino_core() -> Any:
    """The one core of this process, which is never freed. Each core installs a signal stack; two that are freed in the
    order of their creation leave the process on a freed stack, and the next signal, such as Ctrl-C, kills it."""
    core = openvino().Core()
    core.set_property({"ENABLE_MMAP": False})  # a file of weights that is truncated would kill the process
    return core


def _open_openvino(graph: Graph) -> Run:
    core = openvino_core()
    options: dict[str, Any] = {
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "NUM_STREAMS": 1,
        "INFERENCE_PRECISION_HINT": "bf16" if graph.precision == "bf16" else "f32",
    }
    if graph.precision == "int8":
        options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = graph.int8_group
    model = core.compile_model(core.read_model(graph.path), "CPU", options)
    if graph.precision == "bf16" and model.get_property("INFERENCE_PRECISION_HINT").to_string() != "bf16":
        warn("OpenVINO has no bf16 on this processor, and computes in fp32")
    request, alone = model.create_infer_request(), threading.Lock()
    # An output that is another operator's result unchanged has the name of that, too.
    names = [(place, name) for place, output in enumerate(request.model_outputs) for name in output.names]

    def run(feed: Feed) -> dict[str, NDArray[np.float32]]:
        with alone:  # a request has one run at a time
            found = request.infer(dict(feed)).to_tuple()  # copies of its own outputs, which the next run overwrites
        return {name: found[place] for place, name in names}

    return run


_OPENERS: dict[str, Callable[[Graph], Run]] = {"onnx": _open_onnx, "openvino": _open_openvino}
