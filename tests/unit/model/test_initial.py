"""Fresh weights: Google's distribution, and a draw that depends on seed and name alone."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from bertsmith.base.streams import stream_key
from bertsmith.model.encoder import Encoder
from bertsmith.model.initial import CUT_NORMAL_DEVIATION, initialise
from bertsmith.model.pretraining import PretrainingModel
from made_models import drawn_inputs, small_config

CONFIG = small_config(hidden_size=128, intermediate_size=256, vocab_size=500)
SIGMA = 0.02


@pytest.fixture(scope="module")
def model() -> PretrainingModel:
    model = PretrainingModel(CONFIG)
    initialise(model, SIGMA, seed=5)
    return model


def test_weights_are_normal_cut_at_two_sigma(model: PretrainingModel) -> None:
    weights = {name: each for name, each in model.named_parameters() if each.ndim > 1}
    everything = torch.cat([each.detach().reshape(-1).double() for each in weights.values()])
    assert everything.abs().max() <= 2 * SIGMA
    assert everything.abs().max() > 1.99 * SIGMA
    # A normal distribution cut at two sigma has 0.8796 of its standard deviation.
    assert float(everything.std()) == pytest.approx(0.8796 * SIGMA, rel=5e-3)
    assert abs(float(everything.mean())) < 2e-4
    assert float((everything.abs() < SIGMA).double().mean()) == pytest.approx(0.6827 / 0.9545, abs=5e-3)
    for name, each in weights.items():
        assert float(each.detach().std()) == pytest.approx(0.8796 * SIGMA, rel=0.15), name


def test_biases_and_layer_norms(model: PretrainingModel) -> None:
    norms = {name for name, module in model.named_modules() if isinstance(module, nn.LayerNorm)}
    assert len(norms) == 2 * CONFIG.num_hidden_layers + 2
    for name, each in model.named_parameters():
        if each.ndim == 1:
            expected = 1.0 if name.rpartition(".")[0] in norms and name.endswith("weight") else 0.0
            assert bool((each == expected).all()), name


def test_the_draw_is_repeatable_and_no_two_weights_are_alike(model: PretrainingModel) -> None:
    torch.manual_seed(123)  # the global generator plays no part
    again, other = PretrainingModel(CONFIG), PretrainingModel(CONFIG)
    initialise(again, SIGMA, seed=5)
    initialise(other, SIGMA, seed=6)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    weights = [each for each in model.parameters() if each.ndim > 1]
    others = [each for each in other.parameters() if each.ndim > 1]
    assert not any(torch.equal(a, b) for a, b in zip(weights, others, strict=True))
    squares = [each for each in weights if each.shape == (128, 128)]
    assert len({tuple(each[0].tolist()) for each in squares}) == len(squares)


def test_a_layer_more_or_another_head_leaves_the_rest_as_it_is(model: PretrainingModel) -> None:
    deeper = PretrainingModel(dataclasses.replace(CONFIG, num_hidden_layers=3))
    deeper.add_module("classifier", nn.Linear(128, 3))
    initialise(deeper, SIGMA, seed=5)
    found = dict(deeper.named_parameters())
    assert all(torch.equal(each, found[name]) for name, each in model.named_parameters())


def test_the_decoder_is_the_word_embedding(model: PretrainingModel) -> None:
    rows = [name for name, each in model.named_parameters() if each.shape == (CONFIG.vocab_size, 128)]
    assert rows == ["encoder.embeddings.word.weight"]
    assert model.masked_head.bias.shape == (CONFIG.vocab_size,)
    hidden = torch.randn(3, 128)
    before = model.masked_head(hidden, model.encoder.embeddings.word.weight)
    doubled = model.masked_head(hidden, 2 * model.encoder.embeddings.word.weight)
    torch.testing.assert_close(doubled, 2 * before)


def test_an_encoder_alone_has_no_heads() -> None:
    names = {name.split(".")[0] for name, _ in Encoder(CONFIG).named_parameters()}
    assert names == {"embeddings", "layers", "pooler"}


def test_embeddings_can_be_drawn_wider(model: PretrainingModel) -> None:
    wide = PretrainingModel(CONFIG)
    initialise(wide, SIGMA, seed=5, embedding_deviation=0.1)
    ours, bert = wide.state_dict(), model.state_dict()
    changed = {name for name in ours if not torch.equal(ours[name], bert[name])}
    kinds = ("word", "position", "token_type")
    assert changed == {f"encoder.embeddings.{kind}.weight" for kind in kinds}, "nothing else is drawn otherwise"
    words = ours["encoder.embeddings.word.weight"]
    assert float(words.std()) == pytest.approx(0.8796 * 0.1, rel=2e-2)


def test_every_weight_is_drawn_from_the_cut_normal_distribution(model: PretrainingModel) -> None:
    """Kolmogorov and Smirnov's distance, for each matrix: below what one in ten thousand honest draws would exceed."""
    for name, each in model.named_parameters():
        if each.ndim > 1:
            values = each.detach().double().flatten().numpy() / SIGMA
            distance = stats.kstest(values, stats.truncnorm(-2, 2).cdf).statistic
            assert distance < 2.23 / len(values) ** 0.5, name
    assert pytest.approx(stats.truncnorm(-2, 2).std(), abs=5e-5) == CUT_NORMAL_DEVIATION


def test_one_seed_gives_the_same_weights_on_every_torch(model: PretrainingModel) -> None:
    """They are quantiles of uniform draws of 24 bits, which every torch makes alike; here in float64."""
    name = "encoder.embeddings.word.weight"
    generator = torch.Generator().manual_seed(stream_key(5, "weights", name) >> 1)
    drawn = torch.empty(CONFIG.vocab_size, 128).uniform_(0, 1, generator=generator)
    expected = SIGMA * stats.truncnorm(-2, 2).ppf(drawn.double().numpy())
    found = model.get_parameter(name).detach().double().numpy()
    np.testing.assert_allclose(found, expected, rtol=0, atol=5e-6 * SIGMA)
    assert found.flat[:3] / SIGMA == pytest.approx([-0.816195, -0.759170, 0.268429], abs=5e-6)  # of torch 2.13


def test_the_row_of_padding_is_drawn_as_any_other(model: PretrainingModel) -> None:
    """As Google's and NVIDIA's; transformers sets it to 0."""
    row = model.encoder.embeddings.word.weight[CONFIG.pad_token_id].detach()
    assert float(row.std()) == pytest.approx(CUT_NORMAL_DEVIATION * SIGMA, rel=0.25)


def test_fresh_logits_are_even_and_the_first_loss_is_that_of_guessing() -> None:
    config = small_config(hidden_size=128, intermediate_size=256, vocab_size=1000)
    model, batch = PretrainingModel(config), drawn_inputs(config, [20] * 20)
    initialise(model, SIGMA, seed=1)
    with torch.no_grad():
        masked, next_sentence = model.losses(batch)
    assert float(masked.loss / masked.count) == pytest.approx(math.log(1000), abs=0.1)
    assert float(next_sentence.loss / next_sentence.count) == pytest.approx(math.log(2), abs=0.1)
