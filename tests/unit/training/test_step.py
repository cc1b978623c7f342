"""What a step counts on the way, and where it looks for a stop."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from bertsmith.base.layout import Layout
from bertsmith.batches.packing import PretrainBatch
from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.adamw import AdamW
from bertsmith.optim.groups import parameter_groups
from bertsmith.training.pretraining.inputs import to_inputs
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.step import StepSums, train_step
from made_pretraining import fresh_model
from made_steps import PlainSgd

CPU = torch.device("cpu")


def ragged_batch() -> PretrainBatch:
    layout = Layout.from_lengths([30, 17, 29, 5])
    ids = np.arange(layout.tokens) % 20
    types = np.zeros(layout.tokens, np.int64)
    at = np.array([3, 40, 50])
    return PretrainBatch(ids, types, layout.positions, layout, at, ids[at], np.array([0, 1, 1, 0]))


def test_the_slots_counted_are_those_that_attention_worked_on() -> None:
    config = BertConfig(vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    model = PretrainingModel(config)
    initialise(model, 0.02, seed=0)
    sums = StepSums.zero(2, CPU)
    batch = ragged_batch()
    sums.add(Pretraining(model, CPU).forward(batch, CPU))
    assert sums.tokens == 81
    assert sums.slots == to_inputs(batch, CPU).packed.tokens > 81, "what fills a batch up on a CPU is counted"
    assert sums.attention_places == len(to_inputs(batch, CPU).packed.layout.blocks.slots) > 81
    assert "blocks" not in vars(batch.layout), "the blocks are worked out once, for attention"


def test_the_figures_of_a_step_are_sums_over_its_micro_batches() -> None:
    """By their definition, from the logits: loss, count and right predictions of masked words, then of pairs."""
    model = fresh_model(deviation=0.5, vocab_size=20, hidden_size=8, num_hidden_layers=1, intermediate_size=8)
    batch, sums = ragged_batch(), StepSums.zero(2, CPU)
    batch.next_sentence_labels[2] = -100
    inputs = to_inputs(batch, CPU)
    with torch.no_grad():
        for _ in range(2):
            sums.add(Pretraining(model, CPU).forward(batch, CPU))
        hidden = model.encoder(inputs.input_ids, inputs.token_type_ids, inputs.position_ids, inputs.packed)
        expected = []
        for logits, labels in (
            (model.masked_logits(hidden, inputs.masked_positions), inputs.masked_labels),
            (model.next_sentence_logits(hidden, inputs.packed), inputs.next_sentence_labels),
        ):
            counted = labels != -100
            probabilities = logits[counted].softmax(-1)
            loss = -probabilities.gather(1, labels[counted][:, None]).log().sum()
            right = (probabilities.argmax(-1) == labels[counted]).sum()
            expected += [2 * float(each) for each in (loss, counted.sum(), right)]
    assert sums.figures.dtype == torch.float32
    assert sums.figures.tolist() == pytest.approx(expected, rel=1e-5)
    assert expected[1:5:3] == [6, 6]
    assert len(set(expected[:3])) == len(set(expected[3:])) == 3, "a figure in another's place would be seen"


def test_a_step_has_the_gradients_of_its_own_micro_batches_alone() -> None:
    model = fresh_model(deviation=0.5, vocab_size=20, hidden_size=8, num_hidden_layers=1, intermediate_size=8)
    optimizer = AdamW(parameter_groups(model, 0.01))  # its learning rate is 0, so the second step is as the first
    found = []
    for _ in range(2):
        train_step(Pretraining(model, CPU), optimizer, [ragged_batch()], {"masked": 3, "next_sentence": 4}, CPU)
        found.append([each.grad.clone() for each in model.parameters()])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize(
    ("micro_batches", "stop_at", "passes"),
    [
        (1, 1, "forward backward"),
        (3, 0, "forward look backward look forward look backward look forward look backward"),
        (3, 1, "forward look"),
        (3, 2, "forward look backward look"),
        (3, 5, "forward look backward look forward look backward look forward look"),
    ],
)
def test_a_stop_is_looked_for_between_all_passes_of_several_micro_batches(
    micro_batches: int, stop_at: int, passes: str
) -> None:
    """So that two looks, which it takes among several ranks, are one micro-batch apart. After a step the loop looks."""
    model = fresh_model(deviation=0.5, vocab_size=20, hidden_size=8, num_hidden_layers=1, intermediate_size=8)
    before = {name: each.clone() for name, each in model.state_dict().items()}
    done: list[str] = []

    class Noted(Pretraining):
        def forward(self, batch, device):
            done.append("forward")
            found = super().forward(batch, device)
            found.losses["masked"].loss.register_hook(lambda _: done.append("backward"))
            return found

    def should_stop() -> bool:
        done.append("look")
        return done.count("look") == stop_at

    optimizer = PlainSgd(model.parameters(), lr=0.1)
    given = [ragged_batch()] * micro_batches
    counts = {"masked": 3 * micro_batches, "next_sentence": 4 * micro_batches}
    sums = train_step(Noted(model, CPU), optimizer, given, counts, CPU, should_stop=should_stop)
    assert " ".join(done) == passes
    stopped = "look" in passes and stop_at > 0
    assert (sums is None) == stopped
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items()) == stopped
    assert not stopped or all(each.grad is None for each in model.parameters())
