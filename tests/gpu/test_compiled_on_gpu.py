"""The compiled step on a card: eager numbers, three graphs a phase and mode, no wait of the host, a whole run."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from bertsmith.batches.epochs import Epochs
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.order import Order
from bertsmith.batches.packing import fix_shapes
from bertsmith.batches.shapes import FixedShapes
from bertsmith.batches.steps import StepBuilder, held_out_batches
from bertsmith.model.dropout import MANY, add_dropped
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.training.pretrain import pretrain
from bertsmith.training.pretraining.compiled import CompiledStep, choose_compiled
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.step import train_step
from made_gpu_runs import RECIPE, ran_without_waits, stored_corpus
from made_pretraining import fresh_model
from made_shards import SPECIAL, make_source

MASKING = MaskingSettings()
LETTERS = np.arange(SPECIAL.vocabulary_size) % 2 == 0


@pytest.fixture(autouse=True)
def compiler(cuda):
    if not choose_compiled("auto", cuda):
        pytest.skip("steps are not compiled here: Triton is not installed")


@pytest.fixture(autouse=True)
def places(monkeypatch):
    """Dropout of hidden states is drawn as bits here, as in models of usual sizes."""
    monkeypatch.setattr("bertsmith.model.dropout.MANY", 1)


def made(device, compute, dropout=0.0):
    shape = {"vocab_size": SPECIAL.vocabulary_size, "hidden_size": 128, "num_hidden_layers": 2}
    shape |= {"intermediate_size": 256, "hidden_act": "gelu_pytorch_tanh"}
    model = fresh_model(compute, dropout=dropout, **shape).to(device)
    optimizer = Lamb(parameter_groups(model, 0.01))
    optimizer.set_learning_rate(1e-3)
    return model, optimizer


def phase(length):
    order = Order(Epochs(make_source(documents=60), seed=3, phase=1, sequence_length=length))
    shapes = FixedShapes.for_steps(
        order.epoch(0).lengths, MASKING, global_batch=60, ranks=1, budget_tokens=1024, longest=length
    )
    held_out = held_out_batches(
        order.epochs.source, sequence_length=length, instances=30, masking=MASKING, micro_batch_tokens=512, seed=1
    )
    return StepBuilder(order, 60, MASKING, 1024, shapes=shapes), fix_shapes(held_out, length, SPECIAL.cls)


def take(model, optimizer, step, device, compiled):
    return train_step(Pretraining(model, device), optimizer, step.micro_batches, step.counts, device, compiled)


def weights(model):
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def gradients(model):
    return torch.cat([each.grad.flatten() for each in model.parameters()])


def assert_close(found, expected, close):
    """A rate of 0.001 moves weights by so little that their own norm would hide a move in the wrong direction: what is
    compared are gradients, or what was added to weights."""
    assert (found - expected).norm() < close * expected.norm()


@pytest.mark.parametrize(("compute", "close"), [(None, 1e-4), (torch.bfloat16, 3e-2)], ids=["fp32", "bf16"])
def test_it_equals_the_eager_step(cuda, compute, close):
    (model, optimizer), (other, other_optimizer) = made(cuda, compute), made(cuda, compute)
    builder, _ = phase(64)
    step = builder.build(0)
    ours = take(model, optimizer, step, cuda, CompiledStep(model, cuda))
    theirs = take(other, other_optimizer, step, cuda, None)
    assert float(ours.figures[0]) == pytest.approx(float(theirs.figures[0]), rel=close / 10)
    assert float(ours.figures[1]) == float(theirs.figures[1])
    assert float(optimizer.gradient_norm) == pytest.approx(float(other_optimizer.gradient_norm), rel=close)
    assert_close(gradients(model), gradients(other), close)
    start = weights(made(cuda, compute)[0])
    assert_close(weights(model) - start, weights(other) - start, 5 * close)


@pytest.mark.parametrize(("compute", "close"), [(None, 1e-4), (torch.bfloat16, 1e-2)], ids=["fp32", "bf16"])
@pytest.mark.parametrize(("dropout", "many"), [(0.0, 1), (0.1, 1), (0.1, MANY)], ids=["none", "bits", "the compiler's"])
def test_micro_batches_as_cuda_graphs_are_those_of_single_launches(cuda, compute, close, dropout, many, monkeypatch):
    """Over steps of several micro-batches, each with another seed of dropout."""
    monkeypatch.setattr("bertsmith.model.dropout.MANY", many)
    builder, _ = phase(64)
    steps, found = [builder.build(number) for number in range(6)], []
    assert all(len(step.micro_batches) > 1 for step in steps)
    for graphs in ("false", "true"):
        model, optimizer = made(cuda, compute, dropout)
        step_of = CompiledStep(model, cuda, graphs=graphs)
        sums, start = [], weights(model)
        for step in steps:
            torch.manual_seed(step.number)
            sums.append(take(model, optimizer, step, cuda, step_of).figures)
        found.append((torch.stack(sums), gradients(model), weights(model) - start))
    assert [each.refused for each in step_of._captured.values()] == [""]
    (figures, *moved), (expected, *single) = found[::-1]
    torch.testing.assert_close(figures, expected, rtol=close, atol=close)
    for ours, theirs in zip(moved, single, strict=True):
        assert_close(ours, theirs, 5 * close)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_three_graphs_a_phase_and_mode_and_no_wait(cuda, dropout):
    model, optimizer = made(cuda, torch.bfloat16, dropout)
    compiled = CompiledStep(model, cuda)
    for number, length in enumerate((64, 128)):
        builder, held_out = phase(length)
        steps = [builder.build(step) for step in range(12)]
        model.train()
        take(model, optimizer, steps[0], cuda, compiled)
        Pretraining(model, cuda, LETTERS, compiled=compiled).measure(held_out)
        assert compiled.compilations == 6 + 6 * number
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            for step in steps[1:]:
                optimizer.set_learning_rate(1e-3 / (step.number + 1))
                take(model, optimizer, step, cuda, compiled)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        Pretraining(model, cuda, LETTERS, compiled=compiled).measure(held_out)
        assert compiled.compilations == 6 + 6 * number
    assert bool(optimizer.finite)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def test_hidden_states_lose_the_same_places_in_both_passes(cuda, dtype):
    """Of many places, which are drawn as bits."""
    x, down = torch.randn(2, MANY // 256, 256, device=cuda).unbind()
    y = torch.ones_like(x, dtype=dtype, requires_grad=True)
    run = torch.compile(add_dropped, fullgraph=True, dynamic=False)
    torch.manual_seed(5)
    out = run(torch.zeros_like(x), y, 0.1, True)
    torch.manual_seed(5)
    again = run(x, y, 0.1, True)
    again.backward(down)
    kept = out > 0
    torch.testing.assert_close(out, kept * (65536 / (65536 - 6554)))
    torch.testing.assert_close(again, x + out)
    torch.testing.assert_close(y.grad, (down * out).to(dtype))
    deviation = (0.09 / MANY) ** 0.5
    assert float(kept.float().mean()) == pytest.approx(1 - 6554 / 65536, abs=5 * deviation)
    assert float((kept[1:] & kept[:-1]).float().mean()) == pytest.approx((1 - 6554 / 65536) ** 2, abs=10 * deviation)


@pytest.mark.parametrize(("compute", "close"), [(None, 1e-4), (torch.bfloat16, 3e-2)], ids=["fp32", "bf16"])
def test_checkpointing_drops_the_same_places_again(cuda, compute, close):
    """All layers run forward before any runs again, so what each drew has to be found again out of order."""
    builder, _ = phase(64)
    step, found = builder.build(0), []
    for checkpointing in (False, True):
        model, optimizer = made(cuda, compute, 0.1)
        model.encoder.gradient_checkpointing = checkpointing
        torch.manual_seed(7)
        take(model, optimizer, step, cuda, CompiledStep(model, cuda))
        found.append(gradients(model))
    assert_close(found[1], found[0], close)


def test_the_same_step_twice_gives_the_same_bits(cuda):
    """Nothing in it is added up in an order that changes from run to run."""
    builder, _ = phase(64)
    step, found = builder.build(0), []
    for _ in range(2):
        model, optimizer = made(cuda, torch.bfloat16, 0.1)
        torch.manual_seed(7)
        take(model, optimizer, step, cuda, CompiledStep(model, cuda))
        found.append([each.detach().clone() for each in model.parameters()])
    assert all(map(torch.equal, *found))


def test_a_whole_run_learns_and_goes_on(tmp_path):
    corpus = stored_corpus(tmp_path)
    run = pretrain(RECIPE, corpus, tmp_path / "run")
    losses = [record["masked_loss"] for record in run.metrics("train")]
    assert losses[29] < losses[0] - 0.05
    assert json.loads((run.model / "config.json").read_text())["hidden_size"] == 32
    eager = pretrain(replace(RECIPE, compile="false"), corpus, tmp_path / "eager")
    # Other numbers drop, but the instances are the same: a third of what is learned.
    assert [record["masked_loss"] for record in eager.metrics("train")] == pytest.approx(losses, abs=0.03)


@pytest.mark.parametrize("compiled", ["true", "false"])
def test_a_whole_run_waits_for_nothing_between_two_lines_of_the_log(tmp_path, compiled):
    assert ran_without_waits(stored_corpus(tmp_path), tmp_path / "run", compile=compiled).is_finished()
