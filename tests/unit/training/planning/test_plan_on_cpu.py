"""What a plan makes of the passes that it times on a CPU."""

from __future__ import annotations

import pytest

from bertsmith.model.config import BertConfig
from bertsmith.training.planning.cost import Batch
from bertsmith.training.planning.on_cpu import rest_of, share_of_layers


def test_two_passes_tell_a_layer_from_the_rest() -> None:
    assert rest_of(1.0 + 3 * 2.0, 1.0 + 2.0, 3, 0.9) == pytest.approx(1.0)
    assert rest_of(0.5 + 2 * 2.0, 0.5 + 2.0, 2, 0.9) == pytest.approx(0.5)


def test_a_pass_that_was_disturbed_leaves_layers_a_part_of_the_time() -> None:
    assert rest_of(7.0, 6.9, 3, 0.8) == pytest.approx(7.0 * 0.6), "the pass of one layer took too long"
    assert rest_of(9.0, 2.0, 3, 0.8) == 0.0, "the pass of three did"


def test_the_share_of_layers_is_that_of_their_products() -> None:
    config = BertConfig(vocab_size=1000, hidden_size=64, num_attention_heads=2, intermediate_size=256)
    sequence = Batch(tokens=20.0, squares=500.0, masked=3.0, sequences=1.0)
    layers = 3 * (6 * (4 * 64**2 + 2 * 64 * 256) * 20 + 12 * 64 * 500)
    rest = 6 * ((64**2 + 64 * 1000) * 3 + 64**2 + 64 * 2)
    assert share_of_layers(config, 3, sequence) == pytest.approx(layers / (layers + rest))
