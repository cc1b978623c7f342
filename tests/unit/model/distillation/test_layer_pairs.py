"""Which layers learn from which: evenly spaced, in order, the last from the last; and what a user may name."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.model.distillation.layers import evenly_spaced, keep_layers, layer_pairs
from made_models import drawn_inputs, drawn_model, small_config


@given(st.integers(1, 48), st.integers(1, 48))
def test_layers_rise_end_at_the_last_and_are_spaced_evenly(count: int, of: int) -> None:
    layers = evenly_spaced(count, of)
    assert len(layers) == count
    assert layers[-1] == of
    assert layers[0] >= 1
    gaps = {after - before for before, after in pairwise((0, *layers))}
    assert gaps <= {of // count, of // count + 1}
    assert count > of or len(set(layers)) == count


def test_the_usual_cases() -> None:
    assert evenly_spaced(4, 6) == (2, 3, 5, 6)
    assert evenly_spaced(6, 12) == (2, 4, 6, 8, 10, 12)
    assert layer_pairs("auto", 2, 6) == ((0, 0), (1, 3), (2, 6))
    assert layer_pairs(" 0:0, 2:3,4:6", 4, 6) == ((0, 0), (2, 3), (4, 6))


@pytest.mark.parametrize(
    ("text", "what"),
    [("1-2", "is '1-2'"), ("1:2,", "is '1:2,'"), ("5:1", "layer 5 of the student"), ("1:7", "layer 7 of the teacher")],
)
def test_a_wrong_map_is_refused(text: str, what: str) -> None:
    with pytest.raises(BertsmithError, match=what):
        layer_pairs(text, 4, 6)


def test_a_layer_of_the_student_is_named_once() -> None:
    with pytest.raises(BertsmithError, match="a layer of the student twice"):
        layer_pairs("1:1,1:2", 4, 6)


def test_a_model_with_some_layers_is_the_model_without_the_others() -> None:
    config = small_config(num_hidden_layers=3)
    model, inputs = drawn_model(config).eval(), drawn_inputs(config, [5, 3])
    given_ = (inputs.input_ids, inputs.token_type_ids, inputs.position_ids)
    x = model.encoder.embeddings(*given_)
    for place in (0, 2):
        x, _ = model.encoder.layers[place](x, x, inputs.packed)
    keep_layers(model, (1, 3))
    assert model.config.num_hidden_layers == model.encoder.config.num_hidden_layers == 2
    assert torch.equal(model.encoder(*given_, inputs.packed), x)
