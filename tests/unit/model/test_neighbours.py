"""Starting values for short runs: what the pointed heads attend to, and what is left as BERT draws it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bertsmith.model.config import BertConfig
from bertsmith.model.encoder import Encoder
from bertsmith.model.initial import initialise
from bertsmith.model.neighbours import look_at_neighbours, rotation, wave_rates, waves

CONFIG = BertConfig(
    vocab_size=500, hidden_size=256, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
    max_position_embeddings=512,
)  # fmt: skip
DEVIATION = 0.06
LENGTH = 100


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    encoder = Encoder(CONFIG)
    initialise(encoder, 0.02, seed=3, embedding_deviation=DEVIATION)
    look_at_neighbours(encoder, DEVIATION, seed=3)
    return encoder.eval()


def attention(encoder: Encoder, layer: int, start: int = 0) -> Tensor:
    """Probabilities [heads, LENGTH, LENGTH] of a layer on the embeddings of random words at positions from `start`."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(0, 500, (LENGTH,), generator=generator)
    with torch.no_grad():
        x = encoder.embeddings(ids, torch.zeros_like(ids), torch.arange(start, start + LENGTH))
        block = encoder.layers[layer].attention
        q, k = (each(x).view(LENGTH, 4, 64).transpose(0, 1) for each in (block.query, block.key))
        return torch.softmax(q @ k.transpose(1, 2) / 8, dim=-1)


@pytest.mark.parametrize("layer", [0, 1])
@pytest.mark.parametrize("start", [0, 400])
def test_half_of_the_heads_read_the_words_before_and_after(encoder: Encoder, layer: int, start: int) -> None:
    probabilities = attention(encoder, layer, start)
    for head, shift in ((0, -1), (1, 1)):
        on_neighbour = probabilities[head].diagonal(shift)
        assert float(on_neighbour.mean()) > 0.5, f"head {head} does not read the word at {shift:+d}"
        assert float(probabilities[head].diagonal(-shift).mean()) < 0.05
    for head in (2, 3):
        assert float(probabilities[head].max()) < 0.1, "the other heads are as BERT draws them"


def test_the_last_layer_hands_on_in_full_what_it_gathers(encoder: Encoder) -> None:
    assert float(attention(encoder, 2).max()) < 0.1
    gathering = encoder.layers[2].attention
    for linear in (gathering.value, gathering.output):
        torch.testing.assert_close(linear.weight @ linear.weight.T, torch.eye(256), atol=1e-5, rtol=0)
    assert not torch.allclose(gathering.value.weight, gathering.output.weight)


def test_positions_are_waves_and_nothing_else_changes(encoder: Encoder) -> None:
    bert = Encoder(CONFIG)
    initialise(bert, 0.02, seed=3, embedding_deviation=DEVIATION)
    changed = {name for name, each in encoder.state_dict().items() if not torch.equal(each, bert.state_dict()[name])}
    pointed = {f"layers.{layer}.attention.{kind}.weight" for layer in (0, 1) for kind in ("query", "key")}
    gathering = {"layers.2.attention.value.weight", "layers.2.attention.output.weight"}
    assert changed == pointed | gathering | {"embeddings.position.weight"}
    positions = encoder.embeddings.position.weight.detach()
    assert float(positions.square().mean().sqrt()) == pytest.approx(DEVIATION, rel=1e-2)


@pytest.mark.parametrize("shift", [-3, -1, 0, 1, 5])
def test_a_shift_of_waves_is_a_rotation(shift: int) -> None:
    rates = wave_rates(32)
    all_waves = waves(60, 32)
    torch.testing.assert_close(
        all_waves[10:50] @ rotation(rates, shift).T, all_waves[10 + shift : 50 + shift], atol=1e-4, rtol=0
    )


def test_the_same_seed_gives_the_same_weights(encoder: Encoder) -> None:
    again, other = Encoder(CONFIG), Encoder(CONFIG)
    for each, seed in ((again, 3), (other, 4)):
        initialise(each, 0.02, seed=3, embedding_deviation=DEVIATION)
        look_at_neighbours(each, DEVIATION, seed)
    name = "layers.2.attention.value.weight"
    assert torch.equal(again.state_dict()[name], encoder.state_dict()[name])
    assert not torch.equal(other.state_dict()[name], encoder.state_dict()[name])
