"""fp16 in a step of 65,536 sequences: no more gradients are lost than in one of 256, compiled or not."""

from __future__ import annotations

import pytest
import torch

from bertsmith.optim.groups import parameter_groups
from bertsmith.optim.lamb import Lamb
from bertsmith.optim.loss_scale import LossScale
from bertsmith.training.pretraining.compiled import CompiledStep
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.step import train_step
from made_pretraining import batch_of, fresh_model

pytestmark = pytest.mark.usefixtures("fresh_compiler")
CPU = torch.device("cpu")
LENGTHS = [21, 9, 33, 14, 8, 27, 18, 11]
SMALL, LARGE = 256, 65_536
SHAPE = {"vocab_size": 301, "hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}


def taken(sequences: int, is_compiled: bool, scale: float = 4.0) -> tuple[dict[str, torch.Tensor], Lamb]:
    """The gradients of one micro-batch of a step of so many sequences, and the optimizer after the update.

    The counts make it a part of a larger step, whose other micro-batches would only be added in fp32.
    """
    model = fresh_model(torch.float16, deviation=0.05, **SHAPE)
    optimizer = Lamb(parameter_groups(model, 0.01), max_gradient_norm=0.0, loss_scale=LossScale(initial=scale))
    optimizer.set_learning_rate(1e-3)
    batch = batch_of(LENGTHS, seed=3)
    counts = {"masked": sequences * len(batch.masked_labels) // len(LENGTHS), "next_sentence": sequences}
    compiled = CompiledStep(model, CPU, "aot_eager") if is_compiled else None
    found: dict[str, torch.Tensor] = {}
    step = optimizer.step

    def noting() -> None:
        found.update({name: each.grad.clone() for name, each in model.named_parameters()})
        step()

    optimizer.step = noting
    train_step(Pretraining(model, CPU), optimizer, [batch], counts, CPU, compiled)
    return found, optimizer


def zeros(gradients: dict[str, torch.Tensor]) -> int:
    """In the layers: of the rows of embeddings most are used by no token of a small batch."""
    return sum(int((each == 0).sum()) for name, each in gradients.items() if ".layers." in name)


@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_large_step_has_no_more_zero_gradients_than_a_small_one(
    is_compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small, _ = taken(SMALL, is_compiled)
    large, optimizer = taken(LARGE, is_compiled)
    assert zeros(large) <= zeros(small)
    for name, each in small.items():
        torch.testing.assert_close(large[name], each, rtol=2e-3, atol=1e-7)
    assert bool(optimizer.sound)
    assert float(optimizer.loss_scale.factor) == 4.0 * LARGE / 256, "by the loss with the fewest labels"
    torch._dynamo.reset()
    monkeypatch.setattr(LossScale, "set_labels", lambda self, labels: None)
    early, _ = taken(LARGE, is_compiled)
    assert zeros(early) > 100 + 2 * zeros(small), "divided by the whole count alone, many are lost"


@pytest.mark.parametrize("is_compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_norm_that_is_reported_is_that_of_the_loss_itself(is_compiled: bool) -> None:
    norms = [float(taken(sequences, is_compiled)[1].gradient_norm) for sequences in (SMALL, LARGE)]
    assert norms[0] == pytest.approx(norms[1] * LARGE / SMALL, rel=1e-3)


def test_an_overflow_is_seen_skipped_and_halves_the_scale() -> None:
    _, optimizer = taken(LARGE, is_compiled=False, scale=2.0**24)
    assert not bool(optimizer.finite)
    assert bool(optimizer.sound)
    assert float(optimizer.loss_scale.scale) == 2.0**23
    assert int(optimizer.loss_scale.skipped_updates) == 1


@pytest.mark.parametrize(
    ("labels", "factor"), [(1, 1), (255, 1), (256, 1), (511, 1), (512, 2), (65_535, 128), (65_536, 256), (10**7, 2**15)]
)
def test_the_factor_is_a_power_of_two_that_leaves_256_to_511_labels(labels: int, factor: int) -> None:
    scale = LossScale(initial=4.0)
    scale.set_labels(labels)
    assert float(scale.factor) == 4.0 * factor
    assert labels < 256 or 256 <= labels / factor < 512
    scale.set_labels(1)
    assert float(scale.factor) == 4.0, "of the present step alone"
