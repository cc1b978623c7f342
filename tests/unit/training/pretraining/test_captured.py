"""Micro-batches as CUDA graphs: when, and that what is recorded once gives each later micro-batch its own gradients.

There is no CUDA on a CPU: `recorded` does there what a CUDA graph does, on the operators of PyTorch.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from test_compiled import COMPILER, CPU, LETTERS, MASKING, Phase, made, take, together
from torch.utils._python_dispatch import TorchDispatchMode

from bertsmith.base.errors import BertsmithError
from bertsmith.batches.steps import Step, StepBuilder
from bertsmith.bench.step.plan import shape
from bertsmith.model.config import BertConfig
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.training.objective import mean_loss
from bertsmith.training.planning.work import Batch
from bertsmith.training.pretraining import compiled
from bertsmith.training.pretraining.batch_rows import Shape
from bertsmith.training.pretraining.captured import Capture, is_small
from bertsmith.training.pretraining.compiled import CompiledStep
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.step import StepSums

pytestmark = pytest.mark.usefixtures("fresh_compiler")
Work = Callable[[], None]
plainly = pytest.mark.usefixtures("uncompiled")


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be compiled runs as it is written: tracing it takes most of the time of such a test."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)


class Recording(TorchDispatchMode):
    """All operators that run, with the tensors that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Under any other mode PyTorch runs no compiled graph."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        """Runs them again, each result into the memory of the first one: no line of Python's is read again."""
        with torch.no_grad():
            for func, args, kwargs, first in self.calls:
                if func.is_view or isinstance(first, int):  # operators give a dtype as its number
                    continue
                again = func(*args, **kwargs)
                pairs = zip(*([each] if torch.is_tensor(each) else each for each in (first, again)), strict=True)
                for old, new in pairs if first is not None else ():
                    if torch.is_tensor(old) and old is not new:
                        old.copy_(new)


def recording_of(work: Work) -> Recording:
    """The operators of `work`; what its own run gave is of no concern, as a CUDA graph's gives nothing."""
    with torch.random.fork_rng([]), Recording() as recording:
        work()
    return recording


def recorded(work: Work) -> Work:
    return recording_of(work).replay


def step_of(model: PretrainingModel, capture: Capture | None) -> CompiledStep:
    if capture is None:
        return CompiledStep(model, CPU, COMPILER, graphs="false")
    return CompiledStep(model, CPU, COMPILER, graphs="true", capture=capture)


def trained(
    steps: list[Step], capture: Capture | None, dropout: float
) -> tuple[PretrainingModel, ClippedOptimizer, list[StepSums], CompiledStep]:
    """A model after some steps, each with a seed of its own."""
    model, optimizer = made(dropout)
    compiled_step, found = step_of(model, capture), []
    for number, step in enumerate(steps):
        torch.manual_seed(number)
        optimizer.set_learning_rate(1e-2)
        found.append(take(model, optimizer, step, compiled_step))
    return model, optimizer, found, compiled_step


def test_steps_are_those_of_single_launches_to_the_bit() -> None:
    """Of several micro-batches each, of one shape and as many tokens as come; with dropout of the same places."""
    builder = Phase.of(32, 10).builder
    steps = [builder.build(number) for number in range(4)]
    assert all(len(step.micro_batches) > 1 for step in steps)
    one, theirs, alone, _ = trained(steps, None, 0.3)
    other, ours, found, captured = trained(steps, recorded, 0.3)
    assert [each.refused for each in captured._captured.values()] == [""]
    for a, b in zip(found, alone, strict=True):
        assert torch.equal(a.figures, b.figures)
        assert (a.tokens, a.slots, a.attention_places, a.flop) == (b.tokens, b.slots, b.attention_places, b.flop)
    assert torch.equal(ours.gradient_norm, theirs.gradient_norm)
    assert torch.equal(together(one.parameters()), together(other.parameters()))


@plainly
def test_what_fills_a_micro_batch_changes_no_gradient() -> None:
    """In float64, beside the same step without any filling: the fixed shape, as a graph, and exact sizes."""
    phase = Phase.of(64, 5)
    fixed = phase.builder.build(0)
    exact = StepBuilder(phase.builder.order, phase.builder.global_batch, MASKING, 256).build(0)
    assert all(len(batch.input_ids) > batch.tokens for batch in fixed.micro_batches)
    assert all(len(batch.input_ids) == batch.tokens for batch in exact.micro_batches)
    (model, _), (other, _), counts = made(0.0), made(0.0), fixed.counts
    captured, sums = step_of(model.double(), recorded), StepSums.zero(2, CPU)
    for batch in fixed.micro_batches:
        captured.add_gradients(batch, counts, sums, lambda loss: loss)
    assert [each.refused for each in captured._captured.values()] == [""]
    for batch in exact.micro_batches:
        losses = Pretraining(other.double(), CPU).forward(batch, CPU).losses
        mean_loss([losses[name] for name in counts], list(counts.values())).backward()
    ours, theirs = (together(each.grad for each in of.parameters()) for of in (model, other))
    assert (ours - theirs).norm() < 1e-12 * theirs.norm()


def stale(work: Work) -> Work:
    """A graph that does nothing when it runs again."""
    with torch.random.fork_rng([]):
        work()
    return lambda: None


def frozen(part: int, shape: Shape) -> Capture:
    """Graphs that read one part of a micro-batch's row as it was when they were recorded."""

    def capture(work: Work) -> Work:
        recording = recording_of(work)
        tensors = (each for _, args, _, _ in recording.calls for each in args if torch.is_tensor(each))
        row = next(each for each in tensors if each.shape == (sum(shape.parts),))
        then = row.clone()

        def replay() -> None:
            row.split(shape.parts)[part].copy_(then.split(shape.parts)[part])
            recording.replay()

        return replay

    return capture


def always_drawing_the_same(work: Work) -> Work:
    """A graph that keeps the state of the generator."""
    recording, state = recording_of(work), torch.get_rng_state()

    def replay() -> None:
        with torch.random.fork_rng([]):
            torch.set_rng_state(state)
            recording.replay()

    return replay


def overwriting(work: Work) -> Work:
    """A graph that puts gradients where it should add them."""
    recording, ops = recording_of(work), torch.ops.aten
    recording.calls = [
        (ops.copy_.default if func is ops.add_.Tensor else func, *more) for func, *more in recording.calls
    ]
    return recording.replay


def impossible(work: Work) -> Work:
    raise RuntimeError("operation not permitted when stream is capturing\nand more")


@plainly
def test_a_graph_that_is_wrong_is_refused_and_the_step_is_the_same(caplog: pytest.LogCaptureFixture) -> None:
    builder = Phase.of(32, 10).builder
    steps = [builder.build(number) for number in range(2)]
    one, _, alone, _ = trained(steps, None, 0.3)
    other, _, found, captured = trained(steps, stale, 0.3)
    assert "other gradients or losses" in captured.refused
    assert captured.refused in caplog.text
    assert all(torch.equal(a.figures, b.figures) for a, b in zip(found, alone, strict=True))
    assert torch.equal(together(one.parameters()), together(other.parameters()))


@plainly
def test_a_graph_with_anything_left_from_its_recording_is_refused() -> None:
    """Each part of the row, what dropout draws, and gradients that are not added to those before."""
    step = Phase.of(32, 10).builder.build(0)
    shape, (model, _) = Shape.of(step.micro_batches[0]), made(0.3)
    compiled_step = step_of(model, recorded)

    def is_refused(capture: Capture) -> bool:
        compiled_step._captured, compiled_step._capture = {}, capture
        sums, counts = StepSums.zero(2, CPU), {name: 1000 * count for name, count in step.counts.items()}
        compiled_step.add_gradients(step.micro_batches[0], counts, sums, lambda loss: loss)
        return bool(compiled_step.refused)

    assert not is_refused(recorded)
    for part in range(len(shape.parts)):
        assert is_refused(frozen(part, shape)), part
    assert is_refused(always_drawing_the_same)
    assert is_refused(overwriting)
    assert not is_refused(recorded)


@plainly
def test_the_graph_of_another_shape_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does an evaluation drop that of the present one, or make one of its own."""
    made_so_far: list[weakref.ref[Recording]] = []

    def capture(work: Work) -> Work:
        recording = recording_of(work)
        made_so_far.append(weakref.ref(recording))
        return recording.replay

    model, optimizer = made(0.0)
    compiled_step, kept = step_of(model, capture), []
    for phase in (Phase.of(32, 10), Phase.of(64, 5)):
        for number in range(2):
            take(model, optimizer, phase.builder.build(number), compiled_step)
            Pretraining(model, CPU, LETTERS, compiled=compiled_step).measure(phase.held_out)
            kept.append([each() is not None for each in made_so_far])
    assert kept == [[True], [True], [False, True], [False, True]]
    monkeypatch.setattr(compiled_step, "_against_graph", lambda shape: "its micro-batches are large")
    take(model, optimizer, Phase.of(48, 7).builder.build(0), compiled_step)
    assert [each() for each in made_so_far] == [None, None]
    assert not compiled_step.refused


@plainly
def test_a_graph_that_cannot_be_recorded_ends_the_run_with_its_reason() -> None:
    steps = [Phase.of(32, 10).builder.build(0)]
    with pytest.raises(BertsmithError, match="not permitted when stream is capturing") as raised:
        trained(steps, impossible, 0.3)
    assert "and more" not in str(raised.value)
    assert "--resume --compile no-graphs" in raised.value.fix


@plainly
def test_it_is_recorded_on_the_gpu_of_the_model_whichever_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    current: list[torch.device | None] = [None]
    recorded_on = []

    @contextmanager
    def made_current(device: torch.device) -> Iterator[None]:
        current.append(device)
        yield
        current.pop()

    def capture(work: Work) -> Work:
        recorded_on.append(current[-1])
        return recorded(work)

    monkeypatch.setattr("bertsmith.training.pretraining.captured.made_current", made_current)
    trained([Phase.of(32, 10).builder.build(0)], capture, 0.0)
    assert recorded_on == [CPU]


@plainly
def test_gradients_that_were_there_are_kept() -> None:
    batch = Phase.of(32, 10).builder.build(0).micro_batches[0]
    counts = dict.fromkeys(("masked", "next_sentence"), 10)
    model, _ = made(0.0)
    captured = step_of(model, recorded)

    def add() -> torch.Tensor:
        captured.add_gradients(batch, counts, StepSums.zero(2, CPU), lambda loss: loss)
        return together(each.grad for each in model.parameters())

    once = add().clone()
    assert torch.allclose(add(), 2 * once, rtol=1e-6)
    for each in model.parameters():
        each.grad = torch.ones_like(each)
    assert torch.allclose(add(), once + 1, rtol=1e-6)


def test_small_models_take_graphs_and_large_ones_do_not() -> None:
    def chosen(model: str, slots: int, gpu: str, length: int = 128) -> bool:
        config = BertConfig(**shape(model))
        return is_small(config, Batch(slots, slots * length, 0.15 * slots, slots / length), torch.bfloat16, gpu)

    h100 = "NVIDIA H100 80GB HBM3"
    assert chosen("bert-tiny", 4096, h100)
    assert chosen("bert-mini", 8192, h100)
    assert not chosen("base", 32_768, h100)
    assert not chosen("large", 32_768, h100)
    assert chosen("base", 1024, h100)
    assert not chosen("bert-mini", 1 << 18, h100)
    assert chosen("bert-mini", 8192, "a GPU of next year"), "as an H100"
    assert not chosen("base", 4096, "Tesla V100-SXM2-32GB"), "which has no bf16, so it computes in fp32"


def test_only_one_rank_without_checkpointing_or_a_loss_scale_takes_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    model, _ = made(0.0, torch.bfloat16)
    card, small = torch.device("cuda", 0), Shape(1024, 32, 256, 128)
    why = CompiledStep(model, card)._against_graph
    assert not why(small)
    assert "longer" in why(Shape(1 << 30, 1 << 23, 1 << 27, 128))
    assert "asked for" in CompiledStep(model, card, graphs="false")._against_graph(small)
    assert CompiledStep(model, CPU)._against_graph(small) == "a CPU"
    model.encoder.gradient_checkpointing = True
    assert why(small) == "gradient checkpointing"
    model.encoder.gradient_checkpointing = False
    other = copy.deepcopy(model)
    other.encoder.compute = torch.float16
    for graphs in ("auto", "true"):
        assert "fp16" in CompiledStep(other, card, graphs=graphs)._against_graph(small)
    monkeypatch.setattr(compiled, "world_size", lambda: 2)
    assert "several ranks" in why(small)
