"""Compiled steps: three graphs for each shape and mode, with one copy to the device per micro-batch.

A micro-batch goes to the device as one row of whole numbers, the counts of the step among them, so that nothing that
changes from step to step is known to the host, and the host waits for nothing. The embeddings are one graph, a block,
which all layers share, is another, and heads, losses and their division are the third; each has a backward pass.

Legend: V vocabulary.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from types import FunctionType
from typing import Any, Literal

import torch
import torch._functorch.config as functorch_config
from torch import Tensor, nn

from bertsmith.base.errors import BertsmithError
from bertsmith.base.layout import Ints
from bertsmith.base.log import log_choice, warn
from bertsmith.base.ranks import world_size
from bertsmith.batches.packing import PretrainBatch
from bertsmith.model.attention.attend import BackEnd, back_end, settle
from bertsmith.model.attention.packed import Offsets, PaddedRows
from bertsmith.model.pretraining import PretrainingModel, PretrainLosses
from bertsmith.training.objective import figures_of, mean_loss
from bertsmith.training.planning.work import Batch
from bertsmith.training.pretraining.batch_rows import Shape, inputs_of, other_row, row_of
from bertsmith.training.pretraining.captured import Capture, Captured, cuda_capture, is_small
from bertsmith.training.pretraining.evaluate import held_out_figures
from bertsmith.training.pretraining.inputs import flop_of
from bertsmith.training.step import StepSums

Compiler = str | Callable[[torch.fx.GraphModule, list[Tensor]], Callable[..., Any]]
"""A back-end of torch.compile, or the name of one."""
Graphs = Literal["auto", "true", "false"]
COMPILER: Compiler = "inductor"
"""PyTorch's compiler; another back-end can be given where graphs are to be seen and not to be fast."""
BY_RULE = {"deterministic": True}
"""Its settings. By itself it times some kernels that sum in blocks of several sizes, and takes the fastest: a sum would
be added in another order after a restart elsewhere, or where its cache is gone (decision 011)."""


def choose_compiled(setting: str, device: torch.device, sharded: bool = False) -> bool:
    """Whether steps are compiled. setting: "auto" and "no-graphs" (on a GPU with Triton), "true", "false". sharded:
    whether the ranks hold shards of the weights.

    Raises BertsmithError for "true" where the weights are sharded, and where the compiler lacks what it needs.
    """
    if setting == "false":
        return False
    must = setting == "true"
    if sharded:
        what = "sharded weights are gathered by hooks of each layer, which cannot run inside of a compiled block"
        if must:
            raise BertsmithError(
                f"steps cannot be compiled: {what}", "compile", "--compile auto, or --parallel replicate"
            )
        log_choice("steps", "as they come", what)
        return False
    if not must and device.type == "cpu":
        log_choice("steps", "as they come", "on a CPU exact sizes cost less than one compiled shape")
        return False
    missing = _missing(device)
    if missing and not must:
        log_choice("steps", "as they come", f"{missing} is not here, which the compiler needs")
        return False
    if missing:
        raise BertsmithError(f"steps cannot be compiled without {missing}", "compile", "install it, or --compile false")
    log_choice("steps", "compiled", "asked for" if must else "fused kernels, one shape a phase")
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


class CompiledStep:
    """A model, run compiled; a checkpoint is to be loaded before.

    compilations: graphs made so far. There are three for each shape and mode; one that is made again is warned about,
    for it costs as long as the first.
    """

    def __init__(
        self,
        model: PretrainingModel,
        device: torch.device,
        compiler: Compiler = "",
        graphs: Graphs = "auto",
        capture: Capture = cuda_capture,
    ) -> None:
        """graphs: whether micro-batches run as CUDA graphs; "auto" where they are small. capture: what records them."""
        self._model, self._device = model, device
        self._compiler, self._graphs, self._capture = compiler or COMPILER, graphs, capture
        self._captured: dict[Shape, Captured] = {}
        self._reasons: dict[Shape, str] = {}
        self._attended: dict[Shape, int] = {}  # slots that attention works on in training, padding included
        self._programs: dict[tuple[str, Shape, bool], tuple[_Program, _Program, _Program]] = {}

    @property
    def compilations(self) -> int:
        return sum(program.graphs for programs in self._programs.values() for program in programs)

    @property
    def refused(self) -> str:
        """What the graph of the present shape gave otherwise than single launches, so that it is not taken; "" where
        there is none or it is taken."""
        return next((each.refused for each in self._captured.values()), "")

    def add_gradients(
        self, batch: PretrainBatch, counts: Mapping[str, int], sums: StepSums, scaled: Callable[[Tensor], Tensor]
    ) -> None:
        """Runs a micro-batch forward and backward; adds its figures to `sums`. scaled: of an optimizer."""
        shape = Shape.of(batch)
        if shape not in self._reasons:
            self._reasons[shape] = self._against_graph(shape)
            if self._reasons[shape] and self._device.type != "cpu":
                log_choice("micro-batches", "kernel by kernel, not as CUDA graphs", self._reasons[shape])
        if self._reasons[shape]:
            self._captured = {}
            scaled(self.add_losses(batch, counts, sums)).backward()  # type: ignore[no-untyped-call]
            return
        if shape not in self._captured:
            parameters = [each for each in self._model.parameters() if each.requires_grad]
            run, other = partial(self._losses, shape), self._pinned(other_row(shape, counts, self._model.config))
            # Alone, so that the graph of another phase's shape gives its memory back before this one is recorded.
            self._captured = {shape: Captured(parameters, run, other, self._dtype, self._device, self._capture)}
        self._count(batch, shape, self._captured[shape](self._pinned(row_of(batch, counts))), sums)

    def add_losses(self, batch: PretrainBatch, counts: Mapping[str, int], sums: StepSums) -> Tensor:
        """The micro-batch's share of the step's loss, with its graph; adds its figures to `sums`."""
        shape = Shape.of(batch)
        loss, figures = self._losses(shape, self._to_device(row_of(batch, counts)))
        self._count(batch, shape, figures, sums)
        return loss

    def _count(self, batch: PretrainBatch, shape: Shape, figures: Tensor, sums: StepSums) -> None:
        sums.figures += figures
        sums.tokens += batch.tokens
        sums.slots += shape.tokens
        if shape not in self._attended:  # once: to find the back-end makes tensors and asks the driver
            is_padded = self._back_end(shape) == "padded rows"
            self._attended[shape] = shape.offsets().padded_places if is_padded else shape.tokens
        sums.attention_places += self._attended[shape]
        sums.flop += flop_of(self._model.config, batch)

    def _losses(self, shape: Shape, row: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and figures of a micro-batch. row: of `row_of`, on the device."""
        model = self._model

        def heads(hidden: Tensor, row: Tensor) -> tuple[Tensor, Tensor]:
            inputs, counts = inputs_of(row, shape)
            losses = model.losses_of(hidden, inputs)
            return mean_loss(losses, counts.unbind()), figures_of(losses)

        loss, figures = self._run("losses", shape, heads, row)
        return loss, figures

    def _against_graph(self, shape: Shape) -> str:
        """Why micro-batches of a shape run kernel by kernel; "" where they run as a CUDA graph. Ranks sum gradients by
        hooks of the backward pass, and checkpointing keeps the generator's state, on the host."""
        model = self._model
        if self._graphs == "false":
            return "no CUDA graphs are asked for"
        if world_size() > 1:
            return "several ranks, which sum gradients while the backward pass runs"
        if model.encoder.gradient_checkpointing or self._dtype == torch.float16:
            return "fp16, for its loss scale" if self._dtype == torch.float16 else "gradient checkpointing"
        if self._graphs == "true":
            return ""
        if self._device.type == "cpu":
            return "a CPU"
        squares = shape.tokens * shape.longest
        batch = Batch(shape.tokens, squares, shape.masked, shape.sequences)
        if is_small(model.config, batch, self._dtype, torch.cuda.get_device_name(self._device)):
            return ""
        return "the GPU is expected to need longer for them than the host for its launches"

    def held_out(self, batch: PretrainBatch, letters: Tensor) -> Tensor:
        """`held_out_figures` of a micro-batch. letters: bool[V]."""
        shape = Shape.of(batch)
        model = self._model

        def heads(hidden: Tensor, row: Tensor, letters: Tensor) -> Tensor:
            inputs, _ = inputs_of(row, shape)
            return held_out_figures(model.scores_of(hidden, inputs), inputs, letters)

        row = self._to_device(row_of(batch, dict.fromkeys(PretrainLosses._fields, 1)))
        figures: Tensor = self._run("held out", shape, heads, row, letters)
        return figures

    def _run(self, kind: str, shape: Shape, heads: Callable[..., Any], row: Tensor, *more: Tensor) -> Any:
        """What `heads` makes of the hidden states of a micro-batch, its row on the device and `more`."""
        key = (kind, shape, self._model.training)
        if key not in self._programs:
            settle(self._back_end(shape), self._device)
            self._programs[key] = (
                _Program(f"{kind}: embeddings", self._embeddings(shape), self._compiler),
                _Program(f"{kind}: a block", self._block(shape), self._compiler),
                _Program(f"{kind}: heads", heads, self._compiler),
            )
        first, block, last = self._programs[key]
        x, narrow, *where = first(row)
        for layer in self._model.encoder.layers:
            x, narrow = block(layer, x, narrow, *where)
        return last(x, row, *more)

    def _embeddings(self, shape: Shape) -> Callable[..., tuple[Tensor, ...]]:
        """From a row to what the first block is given, and where sequences lie."""
        encoder, is_padded = self._model.encoder, self._back_end(shape) == "padded rows"

        def embeddings(row: Tensor) -> tuple[Tensor, ...]:
            inputs, _ = inputs_of(row, shape)
            where = inputs.packed
            states = encoder.embed(inputs.input_ids, inputs.token_type_ids, inputs.position_ids, tied=True)
            return *states, where.offsets, *(where.padded_rows() if is_padded else ())

        return embeddings

    def _block(self, shape: Shape) -> Callable[..., tuple[Tensor, Tensor]]:
        """Of any layer, which is given as an argument: the weights are inputs of the graph. A layer that differs from
        the others in more than weights, as by a hook, gets a graph of its own."""
        encoder = self._model.encoder

        def block(
            layer: nn.Module, x: Tensor, narrow: Tensor, offsets: Tensor, *padded: Tensor
        ) -> tuple[Tensor, Tensor]:
            rows = PaddedRows(*padded) if padded else None
            return encoder.through(layer, x, narrow, Offsets(offsets, shape.tokens, shape.longest, rows))

        return block

    def _back_end(self, shape: Shape) -> BackEnd:
        """The attention back-end of a shape in the model's present mode."""
        config, model = self._model.config, self._model
        dropout = config.attention_probs_dropout_prob if model.training else 0.0
        heads = config.num_attention_heads
        return back_end(self._device, self._dtype, heads, config.hidden_size // heads, shape.offsets(), dropout)

    @property
    def _dtype(self) -> torch.dtype:
        """Of products."""
        return self._model.encoder.compute or self._model.masked_head.bias.dtype

    def _to_device(self, row: Ints) -> Tensor:
        return self._pinned(row).to(self._device, non_blocking=True)

    def _pinned(self, row: Ints) -> Tensor:
        """On the host, from where a copy to a GPU waits for nothing."""
        host = torch.from_numpy(row)
        return host if self._device.type == "cpu" else host.pin_memory()


class _Program:
    """A function compiled for one shape, and how many graphs that took so far.

    What gradient checkpointing computes again draws from the device's generator, at the state that was kept. PyTorch
    would give it generators of its own, seeded once a process: checkpointing would change the numbers, and a resumed
    run would not give those of an unbroken one.
    """

    def __init__(self, kind: str, work: Callable[..., Any], compiler: Compiler) -> None:
        self.graphs = 0
        found: Callable[..., Any] = torch._dynamo.lookup_backend(compiler)
        self._kind, self._compile = kind, partial(found, config_patches=BY_RULE) if compiler == "inductor" else found
        assert isinstance(work, FunctionType)
        # PyTorch counts compilations, and gives up after some, by code object: each program gets one of its own.
        own = FunctionType(
            work.__code__.replace(), work.__globals__, work.__name__, work.__defaults__, work.__closure__
        )
        self._compiled = torch.compile(own, backend=self._counted, fullgraph=True, dynamic=False)

    def _counted(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.graphs += 1
        if self.graphs > 1:
            warn(f"a graph of steps ({self._kind}) was compiled again, and {self.graphs} times in all")
        with functorch_config.patch(graphsafe_rng_functionalization=False):
            compiled: Callable[..., Any] = self._compile(graph, inputs)
        return compiled

    def __call__(self, *inputs: Tensor | nn.Module) -> Any:
        return self._compiled(*inputs)
