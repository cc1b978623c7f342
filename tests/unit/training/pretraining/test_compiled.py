"""Compiled steps: the numbers of eager ones, three graphs for each phase and mode, and no question to the device."""

from __future__ import annotations

import copy
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch._functorch.config as functorch_config
from torch._dynamo.utils import counters

from bertsmith.base.errors import BertsmithError
from bertsmith.batches.epochs import Epochs
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.order import Order
from bertsmith.batches.packing import PretrainBatch, fix_shapes
from bertsmith.batches.shapes import FixedShapes
from bertsmith.batches.steps import Step, StepBuilder, held_out_batches
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.tokens.special_ids import SpecialIds
from bertsmith.training.pretraining import compiled
from bertsmith.training.pretraining.compiled import CompiledStep, choose_compiled
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.step import StepSums, train_step
from made_pretraining import fresh_model
from made_shards import MemorySource, make_shard, random_documents
from made_steps import Operators, check_close, gradients

pytestmark = pytest.mark.usefixtures("fresh_compiler")
CPU = torch.device("cpu")
MASKING = MaskingSettings()
FEW = SpecialIds(pad=0, unknown=1, cls=2, sep=3, mask=4, vocabulary_size=2048)
LETTERS = np.arange(FEW.vocabulary_size) % 2 == 0
LOSSES, COUNTS = [0, 3], [1, 2, 4, 5]
# The compiler's own graphs, run op by op: what it would make kernels of, without the wait for a C++ compiler.
COMPILER = "aot_eager"


@dataclass
class Phase:
    """Steps of one length and shape, and held-out batches of one shape."""

    builder: StepBuilder
    held_out: list[PretrainBatch]

    @classmethod
    def of(cls, length: int, global_batch: int) -> Phase:
        """Of so many sequences that about every other step has more tokens than its micro-batches have slots."""
        shard = make_shard(random_documents(0, 16))
        source = MemorySource({"train": [shard], "held_out": [make_shard(random_documents(1, 6))]}, FEW)
        order = Order(Epochs(source, seed=1, phase=length, sequence_length=length))
        shapes = FixedShapes.for_steps(
            order.epoch(0).lengths, MASKING, global_batch=global_batch, ranks=1, budget_tokens=256, longest=length
        )
        tight = replace(shapes, micro_batches=1, tokens=256)
        batches = held_out_batches(
            source, sequence_length=length, instances=20, masking=MASKING, micro_batch_tokens=256, seed=1
        )
        assert len(batches) > 1
        return cls(StepBuilder(order, global_batch, MASKING, 256, shapes=tight), fix_shapes(batches, length, FEW.cls))


def made(
    dropout: float, compute: torch.dtype | None = None, layers: int = 2
) -> tuple[PretrainingModel, ClippedOptimizer]:
    shape = {"vocab_size": FEW.vocabulary_size, "hidden_size": 8, "num_hidden_layers": layers, "intermediate_size": 16}
    model = fresh_model(compute, dropout=dropout, seed=3, **shape)
    optimizer = Lamb(parameter_groups(model, 0.01))
    optimizer.set_learning_rate(1e-3)
    return model, optimizer


def take(model: PretrainingModel, optimizer: ClippedOptimizer, step: Step, compiled: CompiledStep | None) -> StepSums:
    return train_step(Pretraining(model, CPU), optimizer, step.micro_batches, step.counts, CPU, compiled)


@pytest.mark.parametrize(
    ("dropout", "checkpointing", "compute", "steps"),
    [
        (0.1, True, torch.bfloat16, 6),
        pytest.param(0.1, True, torch.bfloat16, 25, marks=pytest.mark.slow),
        pytest.param(0.1, True, None, 25, marks=pytest.mark.slow),
        pytest.param(0.0, False, torch.bfloat16, 25, marks=pytest.mark.slow),
    ],
)
def test_three_graphs_a_phase_and_mode_over_ragged_steps(
    dropout: float, checkpointing: bool, compute: torch.dtype | None, steps: int
) -> None:
    """steps: of each phase, after the first."""
    model, optimizer = made(dropout, compute)
    model.encoder.gradient_checkpointing = checkpointing
    step_of = CompiledStep(model, CPU, COMPILER)
    made_so_far, micro_batches = [], []
    counters.clear()
    for phase in (Phase.of(32, 10), Phase.of(64, 5)):
        model.train()
        take(model, optimizer, phase.builder.build(0), step_of)
        Pretraining(model, CPU, LETTERS, compiled=step_of).measure(phase.held_out)
        made_so_far.append(step_of.compilations)
        with torch._dynamo.config.patch(error_on_recompile=True):
            for number in range(1, steps + 1):
                step = phase.builder.build(number)
                optimizer.set_learning_rate(1e-3 / number)
                take(model, optimizer, step, step_of)
                micro_batches.append(len(step.micro_batches))
                if number % 10 == 5:
                    Pretraining(model, CPU, LETTERS, compiled=step_of).measure(phase.held_out)
        assert step_of.compilations == made_so_far[-1]
    assert len(set(micro_batches)) > 1, "some steps take one micro-batch more, of the same graph"
    assert made_so_far == [6, 12], "embeddings, a block for both layers, heads; the same for the evaluation"
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 12


def test_what_is_computed_again_draws_from_the_generator_that_is_kept() -> None:
    """On a GPU PyTorch would take generators of its own, which no checkpoint has."""
    found = []

    def compiler(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        found.append(functorch_config.graphsafe_rng_functionalization)
        return graph.forward

    model, optimizer = made(0.1)
    take(model, optimizer, Phase.of(32, 10).builder.build(0), CompiledStep(model, CPU, compiler))
    assert found == [False] * 3
    assert functorch_config.graphsafe_rng_functionalization, "elsewhere it is as it was"


def together(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([each.detach().double().flatten() for each in tensors])


def test_results_are_those_of_the_eager_step() -> None:
    phase, close = Phase.of(64, 5), 1e-6
    (model, optimizer), (other, other_optimizer) = made(0.0), made(0.0)
    step_of = CompiledStep(model, CPU, COMPILER)
    ragged = StepBuilder(phase.builder.order, phase.builder.global_batch, MASKING, 256)
    for number in range(3):
        step = phase.builder.build(number)
        ours = take(model, optimizer, step, step_of)
        theirs = take(other, other_optimizer, ragged.build(number), None)
        assert ours.figures[LOSSES].tolist() == pytest.approx(theirs.figures[LOSSES].tolist(), rel=1e-6)
        assert ours.figures[COUNTS].tolist() == theirs.figures[COUNTS].tolist()
        assert ours.tokens == theirs.tokens
        assert ours.slots == 256 * len(step.micro_batches)
        assert optimizer.gradient_norm.item() == pytest.approx(other_optimizer.gradient_norm.item(), rel=close)
        found, expected = (together(each.grad for each in of.parameters()) for of in (model, other))
        assert (found - expected).norm() <= close * expected.norm()
        found, expected = together(model.parameters()), together(other.parameters())
        assert (found - expected).norm() <= close * expected.norm()
    figures = Pretraining(model, CPU, LETTERS, compiled=step_of).measure(phase.held_out).as_record()
    assert figures == pytest.approx(Pretraining(other, CPU, LETTERS).measure(phase.held_out).as_record(), rel=1e-6)
    assert step_of.compilations == 6


class _BlocksAlone(compiled._Program):
    """The graphs of other parts are not given to the real compiler."""

    def __init__(self, kind: str, work: Callable[..., object], compiler: compiled.Compiler) -> None:
        super().__init__(kind, work, compiler if kind.endswith("a block") else COMPILER)


@pytest.mark.timeout(1500)  # up to thirty runs of a C++ compiler, on a machine that may be busy
@pytest.mark.skipif(
    bool(compiled._missing(CPU)), reason="PyTorch's compiler writes C++ for a CPU, and there is no C++ compiler"
)
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["a block", "the step"])
def test_the_real_compiler_makes_kernels_with_the_results_of_the_eager_step(
    whole: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, of a step of one layer: its losses and all gradients, compiled afresh.

    whole: all of it, in vectors; else its block, in scalars: what vectors the processor and the compiler have takes
    long to find out.
    """
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    if not whole:
        monkeypatch.setattr(compiled, "_Program", _BlocksAlone)
    (model, optimizer), (other, other_optimizer) = (made(0.0, layers=1) for _ in range(2))
    step = Phase.of(32, 4).builder.build(0)
    with torch._inductor.config.patch({"compile_threads": 1, "cpp.vec_isa_ok": None if whole else False}):
        step_of = CompiledStep(model, CPU)
        ours = take(model, optimizer, step, step_of)
    theirs = take(other, other_optimizer, step, None)
    assert step_of.compilations == 3
    assert len(list(tmp_path.rglob("*.so"))) > 10, "kernels were written and compiled here"
    assert ours.figures[LOSSES].tolist() == pytest.approx(theirs.figures[LOSSES].tolist(), rel=1e-5)
    assert ours.figures[COUNTS].tolist() == theirs.figures[COUNTS].tolist()
    assert optimizer.gradient_norm.item() == pytest.approx(other_optimizer.gradient_norm.item(), rel=1e-5)
    expected = gradients(other)
    check_close(gradients(model), expected, 1e-4)
    assert all(expected[name].any() for name in expected if not name.endswith("key.bias"))


def test_another_compiler_is_given_graphs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not the settings of PyTorch's own."""
    seen: list[torch.fx.GraphModule] = []

    def back_end(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., object]:
        seen.append(graph)
        return graph.forward

    monkeypatch.setattr(compiled, "COMPILER", back_end)
    program = compiled._Program("a sum", lambda x: x + 1, compiled.COMPILER)
    assert program(torch.ones(2)).tolist() == [2, 2]
    assert len(seen) == 1


def test_a_step_asks_the_device_nothing_and_draws_its_dropout_from_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    phase = Phase.of(32, 10)
    model, optimizer = made(0.3)
    step_of = CompiledStep(model, CPU, COMPILER)
    take(model, optimizer, phase.builder.build(0), step_of)
    monkeypatch.setattr(compiled, "back_end", None)  # known of a shape that was met before
    step = phase.builder.build(1)
    with Operators() as watch:
        take(model, optimizer, step, step_of)
    assert watch.counts["aten::mm"] + watch.counts["aten::addmm"], "the graph's own operators are seen"
    assert not watch.asked

    def loss(seed: int) -> float:
        torch.manual_seed(seed)
        return step_of.add_losses(
            step.micro_batches[0], {"masked": 10, "next_sentence": 10}, StepSums.zero(2, CPU)
        ).item()

    assert loss(1) == loss(1) != loss(2)


def test_ranks_can_sum_the_gradients_of_a_layer_while_those_below_are_computed() -> None:
    model, _ = made(0.0)
    batch = Phase.of(32, 10).builder.build(0).micro_batches[0]
    loss = CompiledStep(model, CPU, COMPILER).add_losses(
        batch, dict.fromkeys(("masked", "next_sentence"), 10), StepSums.zero(2, CPU)
    )
    done: dict[str, int] = {}
    watch = Operators()

    def arrived(name: str) -> Callable[[torch.Tensor], None]:
        def note(_: torch.Tensor) -> None:
            done[name] = watch.counts["aten::mm"]

        return note

    for name, parameter in model.named_parameters():
        parameter.register_post_accumulate_grad_hook(arrived(name))
    with watch:
        loss.backward()
    ends = [done[f"encoder.layers.{layer}.attention.query.weight"] for layer in (1, 0)]
    assert 0 < done["masked_head.transform.weight"] < ends[0] < ends[1]
    assert done["encoder.embeddings.word.weight"] == watch.counts["aten::mm"], "tied, so that it has a second part"


def test_layers_that_share_a_graph_drop_other_places() -> None:
    model, _ = made(0.5)
    step_of = CompiledStep(model, CPU, COMPILER)
    batch = Phase.of(32, 10).builder.build(0).micro_batches[0]
    counts = dict.fromkeys(("masked", "next_sentence"), 10)
    step_of.add_losses(batch, counts, StepSums.zero(2, CPU))
    ((embeddings, block, _),) = step_of._programs.values()
    given = embeddings(torch.from_numpy(compiled.row_of(batch, counts)))
    first, second = (block(model.encoder.layers[0], *given) for _ in range(2))
    assert not torch.equal(first[0], second[0])


def test_a_graph_made_again_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    phase = Phase.of(32, 10)
    model, _ = made(0.0)
    step_of = CompiledStep(model, CPU, "eager")
    batch = phase.builder.build(0).micro_batches[0]
    step_of.add_losses(batch, {"masked": 1, "next_sentence": 1}, StepSums.zero(2, CPU))
    assert "compiled again" not in caplog.text
    model.config = copy.copy(model.config)
    model.encoder.compute = torch.bfloat16
    step_of.add_losses(batch, {"masked": 1, "next_sentence": 1}, StepSums.zero(2, CPU))
    assert "compiled again" in caplog.text


def test_what_is_compiled_and_why_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    card = torch.device("cuda", 0)
    assert not any(choose_compiled(setting, CPU) for setting in ("auto", "no-graphs", "false"))
    monkeypatch.setattr(compiled, "find_spec", lambda name: None)
    assert not any(choose_compiled(setting, card) for setting in ("auto", "no-graphs", "false"))
    with pytest.raises(BertsmithError, match="without Triton"):
        choose_compiled("true", card)
    monkeypatch.setattr(compiled, "find_spec", lambda name: object())
    assert all(choose_compiled(setting, card) for setting in ("auto", "no-graphs", "true"))


def test_sharded_weights_are_not_compiled(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="bertsmith")
    card = torch.device("cuda", 0)
    assert not any(choose_compiled(setting, card, sharded=True) for setting in ("auto", "no-graphs", "false"))
    assert "gathered by hooks of each layer" in caplog.text
    with pytest.raises(BertsmithError, match="cannot be compiled") as caught:
        choose_compiled("true", card, sharded=True)
    assert "--parallel replicate" in caught.value.fix


def test_the_compiler_is_the_one_program_that_pytorch_will_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("c++one", "clang++" if sys.platform == "darwin" else "g++"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "c++one")
    assert choose_compiled("true", CPU) is True
    for name in ("no-such-compiler", "c++one -pipe", ""):
        monkeypatch.setenv("CXX", name)
        with pytest.raises(BertsmithError, match=rf"a C\+\+ compiler \(CXX is '{re.escape(name)}'"):
            choose_compiled("true", CPU)
    monkeypatch.delenv("CXX")
    assert choose_compiled("true", CPU) is True
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(BertsmithError, match=r"without a C\+\+ compiler\n"):
        choose_compiled("true", CPU)
