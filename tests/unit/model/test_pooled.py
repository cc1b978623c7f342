"""Of the last layer a model that reads [CLS] alone computes only that, and gets the same numbers and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from made_models import drawn_inputs, small_config


def gradients(model: PretrainingModel, pooled: Tensor, weights: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    (pooled * weights).sum().backward()
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=5),
    layers=st.integers(1, 3),
    again=st.booleans(),
    seed=st.integers(0, 99),
)
def test_the_same_as_pooling_all_of_the_last_layer(lengths, layers, again, seed):
    config = small_config(num_hidden_layers=layers, max_position_embeddings=12)
    model = PretrainingModel(config).double().eval()
    initialise(model, 0.3, seed)
    model.encoder.gradient_checkpointing = again
    batch = drawn_inputs(config, lengths, seed)
    given_ids = (batch.input_ids, batch.token_type_ids, batch.position_ids, batch.packed)
    weights = torch.randn(len(lengths), config.hidden_size, dtype=torch.float64)
    # An empty sequence has no [CLS]: what is given for it is another's and means nothing.
    weights[[place for place, length in enumerate(lengths) if not length]] = 0
    whole, short = model.encoder.pool(model.encoder(*given_ids), batch.packed), model.encoder.pooled(*given_ids)
    torch.testing.assert_close(short, whole, rtol=0, atol=1e-12)
    expected, found = gradients(model, whole, weights), gradients(model, short, weights)
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        torch.testing.assert_close(found[name], each, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("compute", [torch.bfloat16, None])
def test_in_the_precision_of_training(compute):
    config = small_config(num_hidden_layers=2, hidden_size=64, num_attention_heads=2, max_position_embeddings=40)
    model = PretrainingModel(config, compute).eval()
    initialise(model, 0.05, 1)
    batch = drawn_inputs(config, [40, 3, 17, 1], 2)
    given_ids = (batch.input_ids, batch.token_type_ids, batch.position_ids, batch.packed)
    whole = model.encoder.pool(model.encoder(*given_ids), batch.packed)
    close = 2e-2 if compute else 1e-6
    torch.testing.assert_close(model.encoder.pooled(*given_ids), whole, rtol=close, atol=close)


def test_a_hook_of_the_last_layer_gets_all_of_it():
    config = small_config(num_hidden_layers=2, max_position_embeddings=12)
    model = PretrainingModel(config).double().eval()
    initialise(model, 0.3, 0)
    batch = drawn_inputs(config, [5, 12, 3], 1)
    given_ids = (batch.input_ids, batch.token_type_ids, batch.position_ids, batch.packed)
    whole, short = model.encoder(*given_ids), model.encoder.pooled(*given_ids)
    seen = []
    with model.encoder.layers[-1].register_forward_hook(lambda module, given, output: seen.append(output[0])):
        hooked = model.encoder.pooled(*given_ids)
    assert torch.equal(seen[0], whole)
    torch.testing.assert_close(hooked, short, rtol=0, atol=1e-12)
