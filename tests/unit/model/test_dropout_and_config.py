"""Dropout in training only, where BERT has it, repeatable by seed; and configs that make no sense are refused."""

from __future__ import annotations

import pytest
import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.model.activations import FUNCTIONS
from bertsmith.model.config import BertConfig
from bertsmith.model.pretraining import PretrainingModel
from made_models import drawn_inputs, drawn_model, small_config


def hidden(model: PretrainingModel, seed: int) -> torch.Tensor:
    batch = drawn_inputs(model.config, [6, 11])
    torch.manual_seed(seed)
    with torch.no_grad():
        return model.encoder(batch.input_ids, batch.token_type_ids, batch.position_ids, batch.packed)


@pytest.mark.parametrize("kind", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_dropout_is_active_in_training_only_and_repeats_by_seed(kind: str) -> None:
    model = drawn_model(small_config(**{kind: 0.3}))
    plain = drawn_model(small_config()).train()
    model.train()
    assert torch.equal(hidden(model, 1), hidden(model, 1))
    assert not torch.equal(hidden(model, 1), hidden(model, 2))
    model.eval()
    assert torch.equal(hidden(model, 1), hidden(model, 2))
    assert torch.equal(hidden(model, 1), hidden(plain, 3))


def test_activations_are_those_of_their_names() -> None:
    x = torch.linspace(-4, 4, 101, dtype=torch.float64)
    erf = 0.5 * x * (1 + torch.erf(x / 2**0.5))
    tanh = 0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    expected = {"gelu": erf, "gelu_new": tanh, "gelu_pytorch_tanh": tanh, "relu": x.clamp(min=0)}
    for name, function in FUNCTIONS.items():
        torch.testing.assert_close(function(x), expected[name], atol=1e-14, rtol=1e-12)
    assert 1e-4 < float((erf - tanh).abs().max()) < 1e-3


@pytest.mark.parametrize(
    ("values", "what"),
    [
        ({"hidden_size": 10, "num_attention_heads": 3}, "hidden_size 10 is not a multiple"),
        ({"hidden_act": "swish"}, "hidden_act 'swish'"),
        ({"hidden_dropout_prob": 1.0}, "hidden_dropout_prob is 1.0"),
        ({"attention_probs_dropout_prob": -0.1}, "attention_probs_dropout_prob is -0.1"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
        ({"type_vocab_size": 0}, "type_vocab_size is 0"),
        ({"hidden_size": "768"}, "hidden_size is '768'"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps is 0.0"),
        ({"model_type": "roberta"}, "model_type is 'roberta'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "is_decoder is True"),
    ],
)
def test_a_config_that_is_no_bert_is_refused(values: dict[str, object], what: str) -> None:
    with pytest.raises(BertsmithError) as caught:
        BertConfig.from_dict(values)
    assert what in caught.value.what
    assert caught.value.fix


@pytest.mark.parametrize("values", [[], "bert", 3, None])
def test_a_config_that_has_no_keys_is_refused(values: object) -> None:
    with pytest.raises(BertsmithError, match="not keys with values") as caught:
        BertConfig.from_dict(values)
    assert caught.value.where == "config.json"


def test_a_config_survives_its_file_and_foreign_keys() -> None:
    config = small_config(hidden_act="gelu_new", layer_norm_eps=1e-5)
    assert BertConfig.from_dict(config.to_dict()) == config
    assert BertConfig.from_dict({**config.to_dict(), "use_cache": True, "transformers_version": "4"}) == config
    assert BertConfig.from_dict({}) == BertConfig()
    assert BertConfig().head_size == 64
