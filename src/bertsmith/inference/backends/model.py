"""A model for a task, from its folder: PyTorch's, or a graph that another engine runs in its place.

Legend: T tokens, S sequences, C classes, M masked words, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, NoReturn, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.base.device import Device, check_process, choose_device
from bertsmith.base.errors import BertsmithError
from bertsmith.inference.backends.engines import PACKAGES, Run, check_installed, open_graph
from bertsmith.inference.backends.exported import Graph, check_backend, graph_in
from bertsmith.model.config import BertConfig
from bertsmith.model.encoder import Encoder
from bertsmith.model.initial import shapes_only
from bertsmith.tasks.embedding.pooling import VectorModel
from bertsmith.tasks.kinds.masked_words import WordModel
from bertsmith.tasks.kinds.pooled import Classifier
from bertsmith.tasks.kinds.qa import SpanModel
from bertsmith.tasks.kinds.tag import Tagger
from bertsmith.tasks.reading.records import Columns
from bertsmith.tasks.sequences import Inputs
from bertsmith.tasks.task import Runner
from bertsmith.weights.huggingface import load_model, read_config
from bertsmith.weights.stored import refuse_export

Build = Callable[[BertConfig, torch.dtype | None], nn.Module]
_ROW = np.zeros((1, 3), dtype=np.int64)
_STATES = "last_hidden_state"
_SHORTEST = {"input_ids": _ROW, "token_type_ids": _ROW, "attention_mask": _ROW + 1}
_MOST_TOKENS = 1024
"""Of a batch for an engine: with 4,407 ONNX Runtime took 1.3 times as long (docs/decisions/016-other-engines.md)."""


class GraphModel(nn.Module):
    """Gives what a model gives: scores of sequences [S, C], or of tokens [T, C]; vectors are made of the hidden states
    by the model's own code, so they are pooled as it says, whatever the graph was exported for."""

    def __init__(self, run: Run, model: nn.Module) -> None:
        """model: the one in whose place the graph is run; its weights are not used."""
        super().__init__()
        self._run = run
        self._vectors = model.vectors if isinstance(model, VectorModel) else None

    def forward(self, inputs: Inputs) -> Tensor:
        if self._vectors is not None:
            return self._vectors(self.states(inputs), torch.from_numpy(inputs.asked.offsets))
        feed = padded(inputs)
        found = self._run(feed)
        if "start_logits" in found:
            scores = np.stack([found["start_logits"], found["end_logits"]], axis=-1)
        else:
            scores = found["logits"]
        return torch.from_numpy(scores[feed["attention_mask"] > 0] if scores.ndim == 3 else scores)

    def states(self, inputs: Inputs) -> Tensor:
        """The last hidden states of the tokens, fp32[T, H]."""
        feed = padded(inputs)
        return torch.from_numpy(self._run(feed)[_STATES][feed["attention_mask"] > 0])

    def piece_scores(self, inputs: Inputs, slots: Tensor) -> Tensor:
        """Of every piece at some tokens: int64[M] -> [M, V]."""
        found: Tensor = self(inputs)[slots]
        return found


def padded(inputs: Inputs) -> dict[str, NDArray[np.int64]]:
    """A packed batch as rows: "input_ids", "attention_mask" and "token_type_ids", int64[S, L] each."""
    layout = inputs.asked
    real = np.arange(layout.longest) < layout.lengths[:, None]
    feed = {"attention_mask": real.astype(np.int64)}
    for name in ("input_ids", "token_type_ids"):
        feed[name] = np.zeros(real.shape, dtype=np.int64)
        feed[name][real] = getattr(inputs, name)[: layout.tokens].numpy()
    return feed


def ready_model(
    build: Build,
    folder: Path,
    may_be_fresh: Collection[str] = (),
    *,
    backend: str = "torch",
    device: str = "auto",
    precision: str = "auto",
    budget_tokens: int = 8192,
) -> tuple[nn.Module, Runner, dict[str, str | int]]:
    """The model of a folder on its device, how it is run, and by what: engine, device, precision and budget. build,
    may_be_fresh: as for `load_model`.

    Raises BertsmithError for an engine with a precision or a device that it does not have, for a folder that it cannot
    run, and for a budget that is no whole number from 1.
    """
    budget_tokens = count_of("budget_tokens", budget_tokens)
    chosen = chosen_engine(folder, backend, device, precision)
    on = chosen.torch_device if isinstance(chosen, Device) else torch.device("cpu")
    facts: dict[str, str | int] = {"backend": backend, "device": on.type, "precision": chosen.precision}
    facts["budget_tokens"] = budget_tokens
    if isinstance(chosen, Device):
        model = load_model(lambda config: build(config, chosen.compute), folder, may_be_fresh)
        runner = Runner(on, budget_tokens, between=check_process)
        return _on_device(model, on), runner, facts
    run = open_graph(chosen)
    with shapes_only():
        model = build(read_config(folder), None)
    found = run(_SHORTEST)
    if isinstance(model, VectorModel) and _STATES not in found:
        what = "this export gives the answers of its task, and no hidden states to make vectors of"
        other = "export a model of embed or a bare encoder"
        fix = f"use --backend torch with the model that it was exported from, or {other}"
        raise BertsmithError(what, folder, fix)
    _check_outputs(model, {name: each.shape for name, each in found.items()}, chosen.path)
    return GraphModel(run, model), Runner(on, min(budget_tokens, _MOST_TOKENS)), facts


def _check_outputs(model: nn.Module, found: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """Raises BertsmithError for a graph whose outputs of `_SHORTEST` are not those of the model that its folder
    describes: it is another model's, and would answer, or fail, for no reason that shows."""
    config = model.config
    assert isinstance(config, BertConfig)
    wanted: dict[str, tuple[int, ...]]
    if isinstance(model, VectorModel):
        wanted = {_STATES: (*_ROW.shape, config.hidden_size)}
    elif isinstance(model, SpanModel):
        wanted = {"start_logits": _ROW.shape, "end_logits": _ROW.shape}
    elif isinstance(model, WordModel):
        wanted = {"logits": (*_ROW.shape, config.vocab_size)}
    else:
        assert isinstance(model, Classifier | Tagger)
        rows = _ROW.shape[:1] if isinstance(model, Classifier) else _ROW.shape
        wanted = {"logits": (*rows, *model.classifier.bias.shape)}
    for name, shape in wanted.items():
        if found.get(name) != shape:
            gives = f"{name} of the shape {list(found[name])}" if name in found else f"no {name}"
            what = f"this graph is of another model than config.json: for a row of three tokens it gives {gives}"
            raise BertsmithError(f"{what}, where {list(shape)} is wanted", path, "export the model again")


def count_of(name: str, value: object) -> int:
    """A whole number from 1, of NumPy too, as Python's. Raises BertsmithError for anything else."""
    if type(value) is bool or not isinstance(value, Integral) or value < 1:
        raise BertsmithError(f"{name} is {value!r}", name, "use a whole number from 1")
    return int(value)


class Loaded:
    """A model in memory, which stays in its process: Python would say that a part of its tokenizer is in the way.
    columns: where the texts stand in a row."""

    columns: Columns

    def with_columns(self, columns: Columns) -> Self:
        """The same model for rows with other columns."""
        other = copy.copy(self)
        other.columns = columns
        return other

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        vars(other).update(vars(self))
        return other

    def __reduce__(self) -> NoReturn:
        what = f"a loaded {type(self).__name__} can be neither pickled nor copied by copy.deepcopy"
        fix = "load its folder again, in another process too; predict_file and embed_file do so with workers"
        raise BertsmithError(what, "model", fix)


def check_loaded(loading: Mapping[str, Any]) -> None:
    """Raises BertsmithError for what a model is loaded with, where it is loaded already."""
    if loading:
        what = f"the model is loaded already, so this would have no effect: {', '.join(sorted(loading))}"
        raise BertsmithError(what, "model", "give its folder, or load it with these")


def chosen_engine(folder: Path, backend: str, device: str, precision: str) -> Device | Graph:
    """What runs the model of a folder: PyTorch on a device, or another engine the graph that was exported. Loads
    neither. Raises BertsmithError as `ready_model` does for these arguments."""
    check_backend(backend, precision)
    if backend == "torch":
        refuse_export(folder)
        return choose_device(device, precision)
    if device not in ("auto", "cpu"):
        fix = "use --backend torch there, or leave out --device"
        raise BertsmithError(f"{backend} runs on the CPU here, not on {device}", "--device", fix)
    graph = graph_in(folder, backend, precision)
    check_installed(PACKAGES[backend], backend)
    return graph


@torch.inference_mode(False)  # as `load_model`: a move to a GPU makes the weights anew
def _on_device(model: nn.Module, device: torch.device) -> nn.Module:
    """A loaded model where it will be run, with the matrices of its encoder once in memory."""
    model = model.to(device)
    for encoder in (each for each in model.modules() if isinstance(each, Encoder)):
        encoder.keep_weights_once()
    return model
