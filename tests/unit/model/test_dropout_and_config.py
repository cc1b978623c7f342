"""Dropout in training only, where BERT has it, repeatable by seed; and configs that make no sense are refused."""

from __future__ import annotations

import math
import shutil
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from bertsmith.base.errors import BertsmithError
from bertsmith.model.activations import FUNCTIONS
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.prepare import load
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.weights.names import to_huggingface
from made_kernels import kernels_unused
from made_models import drawn_inputs, drawn_model, small_config, twin


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


def moments_of_gradients(take: Callable[[], Tensor], weights: list[Tensor], draws: int) -> tuple[Tensor, Tensor]:
    """Of each weight, over so many masks: the mean gradient, of all weights in a row, and the mean squared norm of each
    weight's gradient."""
    sums, squares = torch.zeros(sum(each.numel() for each in weights)), torch.zeros(len(weights))
    for seed in range(draws):
        torch.manual_seed(seed)
        gradients = torch.autograd.grad(take(), weights)
        sums += torch.cat([each.flatten() for each in gradients])
        squares += torch.stack([each.square().sum() for each in gradients])
    return sums / draws, squares / draws


@pytest.mark.parametrize("kind", ["hidden_dropout_prob", "attention_probs_dropout_prob"])
def test_gradients_with_dropout_are_those_of_transformers_on_average(kind: str) -> None:
    """Masks are drawn in other ways, so what can be equal are averages over many of them, and how far they spread: of
    PyTorch's operators, and of the C++ kernels where they can be compiled."""
    draws, sequences, length = 500, 4, 8
    model = drawn_model(small_config(num_hidden_layers=1, **{kind: 0.3}), dtype=torch.float32).train()
    batch = drawn_inputs(model.config, [length] * sequences)
    ids, kinds, places = batch.input_ids, batch.token_type_ids, batch.position_ids
    weighing = torch.randn(sequences * length, model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    theirs = twin(model).train()

    def our_loss() -> Tensor:
        return (model.encoder(ids, kinds, places, batch.packed) * weighing).sum()

    def their_loss() -> Tensor:
        shape = (sequences, length)
        hidden = theirs.bert(input_ids=ids.view(shape), token_type_ids=kinds.view(shape)).last_hidden_state
        loss: Tensor = (hidden.reshape(weighing.shape) * weighing).sum()
        return loss

    names = [name for name, _ in model.encoder.layers.named_parameters() if not name.endswith("key.bias")]
    ours = dict(model.encoder.layers.named_parameters())
    others = dict(theirs.named_parameters())
    matching = [others[to_huggingface(f"encoder.layers.{name}")] for name in names]
    expected, expected_squares = moments_of_gradients(their_loss, matching, draws)
    for by_kernels in (False, sys.platform == "linux" and bool(shutil.which("g++") or shutil.which("clang++"))):
        with kernels_unused():
            assert not by_kernels or load()
            mean, squares = moments_of_gradients(our_loss, [ours[name] for name in names], draws)
        noise = ((squares.sum() - expected.square().sum()) * 2 / draws).sqrt()
        assert (mean - expected).norm() < 1.5 * noise < 0.2 * expected.norm()
        assert (squares / expected_squares - 1).abs().max() < 0.2


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
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"hidden_dropout_prob": False}, "hidden_dropout_prob is False"),
        ({"pad_token_id": -1}, "pad_token_id is -1"),
        ({"layer_norm_eps": 0.0}, "layer_norm_eps is 0.0"),
        ({"layer_norm_eps": math.inf}, "layer_norm_eps is inf"),
        ({"layer_norm_eps": 1e30}, "layer_norm_eps is 1e+30"),
        ({"initializer_range": math.nan}, "initializer_range is nan"),
        ({"num_hidden_layers": 100_000_000}, "num_hidden_layers is 100000000"),
        ({"hidden_size": 32 * 10**23, "num_attention_heads": 2}, "hidden_size is 3200000000000000000000000"),
        ({"vocab_size": 10**18}, "vocab_size is 1000000000000000000"),
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
    unsaid = ("model_type", "position_embedding_type", "is_decoder", "hidden_size", "hidden_act")
    assert BertConfig.from_dict(dict.fromkeys(unsaid)) == BertConfig()
    assert BertConfig().head_size == 64
