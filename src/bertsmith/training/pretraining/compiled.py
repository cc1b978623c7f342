"""Compiled steps: one graph for each shape and mode, with one copy to the device per micro-batch.

A micro-batch goes to the device as one row of whole numbers, the counts of the step among them, so that nothing that
changes from step to step is known to the host, and the host waits for nothing. Forward pass, losses and their division
are one graph, their backward pass is another.

Legend: T token slots, S sequences, M masked slots, V vocabulary.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from types import FunctionType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bertsmith.base.errors import BertsmithError
from bertsmith.base.layout import Ints
from bertsmith.base.log import log_choice, warn
from bertsmith.batches.packing import PretrainBatch
from bertsmith.model.attention.attend import BackEnd, back_end, tell
from bertsmith.model.attention.packed import Offsets
from bertsmith.model.pretraining import PretrainingModel, PretrainInputs, PretrainLosses
from bertsmith.training.objective import figures_of, mean_loss
from bertsmith.training.pretraining.evaluate import held_out_figures
from bertsmith.training.pretraining.inputs import flop_of
from bertsmith.training.step import StepSums

Compiler = str | Callable[[torch.fx.GraphModule, list[Tensor]], Callable[..., Any]]
"""A back-end of torch.compile, or the name of one."""
COMPILER: Compiler = "inductor"
"""PyTorch's compiler; another back-end can be given where graphs are to be seen and not to be fast."""


def choose_compiled(setting: str, device: torch.device, sharded: bool = False) -> bool:
    """Whether steps are compiled. setting: "auto" (on a GPU with Triton), "true", "false". sharded: whether the ranks
    hold shards of the weights.

    Raises BertsmithError for "true" where the weights are sharded, and where the compiler lacks what it needs.
    """
    if setting == "false":
        return False
    if sharded:
        what = "a step is one graph, and sharded weights are gathered layer by layer in the middle of it"
        if setting == "true":
            raise BertsmithError(
                f"steps cannot be compiled: {what}", "compile", "--compile auto, or --parallel replicate"
            )
        log_choice("steps", "as they come", what)
        return False
    if setting == "auto" and device.type == "cpu":
        log_choice("steps", "as they come", "on a CPU exact sizes cost less than one compiled shape")
        return False
    missing = _missing(device)
    if missing and setting == "auto":
        log_choice("steps", "as they come", f"{missing} is not here, which the compiler needs")
        return False
    if missing:
        raise BertsmithError(f"steps cannot be compiled without {missing}", "compile", "install it, or --compile false")
    log_choice("steps", "compiled", "asked for" if setting == "true" else "fused kernels, one shape a phase")
    return True


def _missing(device: torch.device) -> str:
    """What PyTorch's compiler writes its kernels with on a device, where that is not here."""
    if device.type != "cpu":
        return "" if find_spec("triton") else "Triton"
    # PyTorch runs CXX as the name of one program: "ccache g++" fails there too, and so does an empty one.
    name = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(name):
        return ""
    return f"a C++ compiler (CXX is '{name}', and no program is called so)" if "CXX" in os.environ else "a C++ compiler"


@dataclass(frozen=True)
class Shape:
    """T, S, M and the most slots of a sequence."""

    tokens: int
    sequences: int
    masked: int
    longest: int

    @classmethod
    def of(cls, batch: PretrainBatch) -> Shape:
        """That of a micro-batch."""
        return cls(len(batch.input_ids), batch.layout.sequences, len(batch.masked_positions), batch.layout.longest)

    def offsets(self) -> Offsets:
        """Those of a batch of this shape; their values are of no concern."""
        return Offsets(torch.zeros(self.sequences + 1, dtype=torch.int32), self.tokens, self.longest)

    @property
    def parts(self) -> list[int]:
        """How many numbers each part of a row has, in the order of `row_of`."""
        return [*[self.tokens] * 3, self.sequences + 1, *[self.masked] * 2, self.sequences, len(PretrainLosses._fields)]


def row_of(batch: PretrainBatch, counts: Mapping[str, int]) -> Ints:
    """A micro-batch and the counts of its step as one row: int64[3 T + S + 1 + 2 M + S + 2]."""
    numbers = np.array([counts[name] for name in PretrainLosses._fields])
    return np.concatenate(
        (
            *(batch.input_ids, batch.token_type_ids, batch.position_ids, batch.layout.offsets),
            *(batch.masked_positions, batch.masked_labels, batch.next_sentence_labels, numbers),
        )
    )


def _inputs(row: Tensor, shape: Shape) -> tuple[PretrainInputs, Tensor]:
    """What the model takes, and the counts, int64[2]."""
    ids, kinds, positions, offsets, masked, labels, next_sentence, counts = torch.split(row, shape.parts)
    where = Offsets(offsets.int(), shape.tokens, shape.longest)
    # Computed before any layer, because checkpointing runs layers again; the compiler drops it if no layer uses it.
    where.padded_rows()
    return PretrainInputs(ids, kinds, positions, where, masked, labels, next_sentence), counts


class CompiledStep:
    """A model, run compiled; a checkpoint is to be loaded before.

    compilations: graphs made so far. There is one for each shape and mode; one that is made again is warned about, for
    it costs as long as the first.
    """

    def __init__(self, model: PretrainingModel, device: torch.device, compiler: Compiler = "") -> None:
        self._model, self._device = model, device
        self._compiler = compiler or COMPILER
        self._programs: dict[tuple[str, Shape, bool], _Program] = {}

    @property
    def compilations(self) -> int:
        return sum(program.graphs for program in self._programs.values())

    def add_losses(self, batch: PretrainBatch, counts: Mapping[str, int], sums: StepSums) -> Tensor:
        """The micro-batch's share of the step's loss, with its graph; adds its figures to `sums`."""
        shape = Shape.of(batch)
        model = self._model

        def work(row: Tensor) -> tuple[Tensor, Tensor]:
            inputs, counts = _inputs(row, shape)
            losses = model.losses(inputs)
            return mean_loss(losses, counts.unbind()), figures_of(losses)

        loss, figures = self._program("losses", shape, work)(self._to_device(row_of(batch, counts)))
        sums.figures += figures
        sums.tokens += batch.tokens
        sums.slots += shape.tokens
        sums.attention_places += self._attended(shape)
        sums.flop += flop_of(model.config, batch)
        result: Tensor = loss
        return result

    def held_out(self, batch: PretrainBatch, letters: Tensor) -> Tensor:
        """`held_out_figures` of a micro-batch. letters: bool[V]."""
        shape = Shape.of(batch)
        model = self._model

        def work(row: Tensor, letters: Tensor) -> Tensor:
            return held_out_figures(model, _inputs(row, shape)[0], letters)

        figures: Tensor = self._program("held out", shape, work)(
            self._to_device(row_of(batch, dict.fromkeys(PretrainLosses._fields, 1))), letters
        )
        return figures

    def _program(self, kind: str, shape: Shape, work: Callable[..., Any]) -> _Program:
        """The compiled `work` of a kind, shape and mode, made at its first use."""
        key = (kind, shape, self._model.training)
        if key not in self._programs:
            tell(self._back_end(shape))
            self._programs[key] = _Program(kind, work, self._compiler)
        return self._programs[key]

    def _back_end(self, shape: Shape) -> BackEnd:
        """The attention back-end of a shape in the model's present mode."""
        config, model = self._model.config, self._model
        dtype = model.encoder.compute or model.masked_head.bias.dtype
        dropout = config.attention_probs_dropout_prob if model.training else 0.0
        heads = config.num_attention_heads
        return back_end(self._device, dtype, heads, config.hidden_size // heads, shape.offsets(), dropout)

    def _attended(self, shape: Shape) -> int:
        """The slots that attention works on, padding included."""
        return shape.offsets().padded_places if self._back_end(shape) == "padded rows" else shape.tokens

    def _to_device(self, row: Ints) -> Tensor:
        host = torch.from_numpy(row)
        return host if self._device.type == "cpu" else host.pin_memory().to(self._device, non_blocking=True)


class _Program:
    """A function compiled for one shape, whole, and how many graphs that took so far."""

    def __init__(self, kind: str, work: Callable[..., Any], compiler: Compiler) -> None:
        self.graphs = 0
        self._kind, self._compile = kind, torch._dynamo.lookup_backend(compiler)
        assert isinstance(work, FunctionType)
        # PyTorch counts compilations, and gives up after some, by code object: each program gets one of its own.
        own = FunctionType(
            work.__code__.replace(), work.__globals__, work.__name__, work.__defaults__, work.__closure__
        )
        self._run = torch.compile(own, backend=self._counted, fullgraph=True, dynamic=False)

    def _counted(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        if self.graphs > 1:
            warn(f"the graph of a step ({self._kind}) was compiled again; this is the {self.graphs}th time")
        compiled: Callable[..., Any] = self._compile(graph, inputs)
        return compiled

    def __call__(self, *inputs: Tensor) -> Any:
        return self._run(*inputs)
