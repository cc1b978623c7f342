"""The pre-training step on a card: the same numbers as on a CPU, finite in half precision, and learning."""

from __future__ import annotations

import pytest
import torch

from bertsmith.base.device import choose_device
from bertsmith.bench.step.made_batches import lengths_of, pretrain_batch
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.training.pretraining.inputs import to_inputs
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.step import train_step
from made_pretraining import fresh_model

VOCABULARY = 1000
CPU = torch.device("cpu")


def model_of(compute: torch.dtype | None, dropout: float = 0.0) -> PretrainingModel:
    shape = {"vocab_size": VOCABULARY, "hidden_size": 128, "num_hidden_layers": 3}
    return fresh_model(compute, dropout=dropout, **shape, intermediate_size=512, hidden_act="gelu_pytorch_tanh")


def gradients_on(device: torch.device, compute: torch.dtype | None = None) -> tuple[float, dict[str, torch.Tensor]]:
    model = model_of(compute).to(device)
    batch = pretrain_batch(lengths_of("ragged", 24, 96), VOCABULARY)
    masked, next_sentence = model.losses(to_inputs(batch, device))
    loss = masked.loss / len(batch.masked_positions) + next_sentence.loss / batch.layout.sequences
    loss.backward()
    return loss.item(), {name: each.grad.cpu().double() for name, each in model.named_parameters()}


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    """The largest relative distance of a tensor; one that is zero by nature (the key biases) counts absolutely."""
    return max(float((one[name] - other[name]).norm() / (other[name].norm() + 1e-4)) for name in other)


@pytest.fixture(scope="module")
def on_cpu():
    return gradients_on(CPU)


def test_fp32_gradients_equal_those_of_the_cpu(cuda, on_cpu):
    loss, gradients = gradients_on(cuda)
    assert loss == pytest.approx(on_cpu[0], rel=1e-5)
    assert distance(gradients, on_cpu[1]) < 1e-3


def test_bf16_gradients_are_near_those_of_fp32(cuda, on_cpu):
    """Attention is the back-end that the GPU takes, as docs/attention.md has them."""
    loss, gradients = gradients_on(cuda, torch.bfloat16)
    assert loss == pytest.approx(on_cpu[0], rel=1e-2)
    assert distance(gradients, on_cpu[1]) < 0.1


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_it_learns_a_batch_by_heart(cuda, dropout):
    model = model_of(torch.bfloat16, dropout).to(cuda).train()
    optimizer = Lamb(parameter_groups(model, 0.01))
    batch = pretrain_batch(lengths_of("ragged", 8, 64), VOCABULARY)
    counts = {"masked": len(batch.masked_positions), "next_sentence": batch.layout.sequences}
    losses = []
    for _ in range(60):
        optimizer.set_learning_rate(1e-2)
        sums = train_step(Pretraining(model, cuda), optimizer, [batch], counts, cuda)
        losses.append(float(sums.figures[0] / sums.figures[1]))
    assert losses[0] == pytest.approx(6.9, abs=0.3), "an untrained model guesses: ln 1000"
    assert losses[-1] < 0.6 * losses[0]


def test_a_non_finite_gradient_changes_nothing(cuda):
    model = model_of(None).to(cuda)
    optimizer = Lamb(parameter_groups(model, 0.01))
    optimizer.set_learning_rate(1e-2)
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    for each in model.parameters():
        each.grad = torch.full_like(each, float("inf"))
    optimizer.step()
    assert not bool(optimizer.finite)
    assert all(torch.equal(before[name], each) for name, each in model.named_parameters())


def test_a_device_that_is_chosen_is_the_card():
    assert choose_device("auto").torch_device.type == "cuda"
