"""Our side of the step bench, compiled: one shape for ragged batches, and the counts of what is real."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.utils import counters

from bertsmith.bench.step import ours as our_step
from bertsmith.bench.step.loaded import data_wait_share
from bertsmith.bench.step.made_batches import lengths_of, pretrain_batch
from bertsmith.bench.step.side import StepSide
from bertsmith.training.pretraining import compiled
from bertsmith.training.step import train_step

SHAPE = {
    "vocab_size": 300,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def test_ragged_batches_take_the_graphs_of_one_shape_and_give_eager_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "COMPILER", "aot_eager")
    torch._dynamo.reset()
    counters.clear()
    batches = [pretrain_batch(lengths_of("wikipedia", 6, 128, seed), 300, seed) for seed in range(2)]
    losses: dict[bool, list[list[float]]] = {False: [], True: []}
    for is_compiled, found in losses.items():

        def noting(*arguments, found=found):  # type: ignore[no-untyped-def]
            sums = train_step(*arguments)
            found.append(sums.figures[:2].tolist())

        monkeypatch.setattr(our_step, "train_step", noting)
        side = StepSide(model=SHAPE, precision="fp32", compiled=is_compiled, longest=128)
        take = our_step.OurSteps(side, batches)
        for number in (0, 1, 0):
            take(number)
    assert len(losses[True]) == 3
    for ours, theirs in zip(losses[True], losses[False], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    assert counters["stats"]["unique_graphs"] == 3, "of the losses"


def test_each_set_has_its_shape_and_batches_of_a_loader_take_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nothing is compiled again, and short sequences are not filled up to the shape of long ones."""
    monkeypatch.setattr(compiled, "COMPILER", "aot_eager")
    torch._dynamo.reset()
    sets = [[pretrain_batch(lengths_of(kind, 24, 128), 300)] for kind in ("full", "ragged")]
    ours = our_step.OurSteps(StepSide(model=SHAPE, precision="fp32", compiled=True, longest=128), *sets)
    full, ragged = ours.batches
    assert len(full.input_ids) == 24 * 128
    assert len(ragged.input_ids) - ragged.tokens < 128
    ours(1)
    assert ours.compilations == 3, "of the losses"
    assert 0 <= data_wait_share(ours, 1, 300, steps=3) < 1
    assert data_wait_share(ours, 0, 300, steps=3) is None, "there shorter sequences do not fit, however few"
    assert ours.compilations == 3
