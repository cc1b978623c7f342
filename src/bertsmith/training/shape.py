"""The shape of a recipe's model, as the config that the model is made of."""

from __future__ import annotations

from bertsmith.model.config import BertConfig
from bertsmith.recipes.schema import ModelShape


def config_of(shape: ModelShape, vocabulary_size: int, pad: int) -> BertConfig:
    """The shape of a recipe as a config. vocabulary_size: in pieces. pad: the id of [PAD]."""
    return BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=shape.hidden,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        intermediate_size=shape.intermediate,
        hidden_act=shape.activation,
        hidden_dropout_prob=shape.hidden_dropout,
        attention_probs_dropout_prob=shape.attention_dropout,
        max_position_embeddings=shape.max_positions,
        pad_token_id=pad,
    )
