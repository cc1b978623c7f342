"""Hugging Face's names and ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.model.config import BertConfig
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.weights.names import part_of, to_huggingface, to_ours

NAMES = [name for name, _ in PretrainingModel(
    BertConfig(vocab_size=8, hidden_size=4, num_hidden_layers=13, num_attention_heads=2, intermediate_size=8)
).named_parameters()]  # fmt: skip


def test_there_and_back_for_every_parameter():
    theirs = [to_huggingface(name) for name in NAMES]
    assert len(set(theirs)) == len(NAMES)
    assert [to_ours(name) for name in theirs] == NAMES
    assert [to_ours(name.removeprefix("bert.")) for name in theirs] == NAMES


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("bert.encoder.layer.11.attention.self.key.bias", "encoder.layers.11.attention.key.bias"),
        ("encoder.layer.3.output.LayerNorm.gamma", "encoder.layers.3.feed_forward_norm.weight"),
        ("bert.embeddings.LayerNorm.beta", "encoder.embeddings.norm.bias"),
        ("cls.predictions.bias", "masked_head.bias"),
        ("cls.seq_relationship.weight", "next_sentence.weight"),
        ("classifier.bias", "classifier.bias"),
    ],
)
def test_known_names(theirs, ours):
    assert to_ours(theirs) == ours


@pytest.mark.parametrize(
    "name",
    [
        "module.bert.embeddings.word_embeddings.weight",
        "bert.encoder.layer.0.attention.self.key.weight_orig",
        "bert.encoder.layer.x.output.dense.weight",
        "embeddings.word_embeddings",
        "pooler.dense.gamma",
        "",
    ],
)
def test_other_names_are_not_taken(name):
    assert to_ours(name) is None


@given(st.text(alphabet="bertncodrlayes.0123456789_", max_size=60))
def test_any_text_is_answered(name):
    ours = to_ours(name)
    assert ours is None or to_ours(to_huggingface(ours)) == ours


def test_parts():
    assert {part_of(name) for name in NAMES} == {"encoder", "encoder.pooler", "masked_head", "next_sentence"}
    assert part_of("encoder.pooler.weight") == "encoder.pooler"


def test_an_unknown_name_of_ours_is_our_bug():
    with pytest.raises(ValueError, match="no Hugging Face name"):
        to_huggingface("encoder.layers.0.gate.weight")
