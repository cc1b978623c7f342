"""What is recorded while an encoder runs is what it computed, and nothing is left behind."""

import pytest
import torch

from bertsmith.model.distillation.states import recorded
from made_models import drawn_inputs, drawn_model, small_config

CONFIG = small_config(num_hidden_layers=3)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_states_are_those_of_the_layers_with_their_gradients(checkpointing: bool) -> None:
    model, inputs = drawn_model(CONFIG).train(), drawn_inputs(CONFIG, [6, 2, 4])
    given = (inputs.input_ids, inputs.token_type_ids, inputs.position_ids)
    model.encoder.gradient_checkpointing = checkpointing
    with recorded(model.encoder, [0, 1, 3], [2]) as states:
        out = model.encoder(*given, inputs.packed)
    expected = [model.encoder.embeddings(*given)]
    for layer in model.encoder.layers:
        x, _ = layer(expected[-1], expected[-1], inputs.packed)
        expected.append(x)
    assert sorted(states.hidden) == [0, 1, 3]
    for number, found in states.hidden.items():
        assert torch.equal(found, expected[number])
    assert torch.equal(states.hidden[3], out)
    attention = model.encoder.layers[1].attention
    for place, linear in enumerate((attention.query, attention.key, attention.value)):
        assert torch.allclose(states.qkv[2][:, place], linear(expected[1]))
    weight = model.encoder.layers[0].feed_forward.inner.weight
    (ours,) = torch.autograd.grad(states.qkv[2].sum() + states.hidden[3].square().sum(), [weight])
    qkv = sum(linear(expected[1]).sum() for linear in (attention.query, attention.key, attention.value))
    (theirs,) = torch.autograd.grad(qkv + expected[3].square().sum(), [weight])
    assert torch.allclose(ours, theirs)


def test_nothing_is_recorded_outside_the_block() -> None:
    model, inputs = drawn_model(CONFIG).eval(), drawn_inputs(CONFIG, [4])
    given = (inputs.input_ids, inputs.token_type_ids, inputs.position_ids, inputs.packed)
    with pytest.raises(KeyError), recorded(model.encoder, [0, 1], [1]) as states:
        raise KeyError
    model.encoder(*given)
    assert not states.hidden
    assert not states.qkv
    assert all(layer.attention.record is None and not layer._forward_hooks for layer in model.encoder.layers)
