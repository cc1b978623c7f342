"""Parameters are counted without making a model: as many as a real one has, of each kind."""

from __future__ import annotations

import pytest

from bertsmith.model.config import BertConfig
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.tasks.kinds.pooled import Classifier
from bertsmith.training.planning.model_size import parameters

SHAPES = [
    BertConfig(vocab_size=500, hidden_size=32, num_hidden_layers=3, num_attention_heads=2, intermediate_size=48),
    BertConfig(vocab_size=71, hidden_size=16, num_hidden_layers=1, num_attention_heads=4, intermediate_size=100),
]


@pytest.mark.parametrize("config", SHAPES)
def test_the_model_of_pre_training(config: BertConfig) -> None:
    model, size = PretrainingModel(config), parameters(config)
    assert size.total == sum(each.numel() for each in model.parameters())
    assert size.vectors == sum(each.numel() for each in model.parameters() if each.ndim == 1)
    assert size.words == model.encoder.embeddings.word.weight.numel()
    assert size.layers == sum(each.numel() for each in model.encoder.layers.parameters() if each.ndim == 2)


@pytest.mark.parametrize("config", SHAPES)
def test_a_classifier(config: BertConfig) -> None:
    model = Classifier(config, 5, None)
    assert parameters(config, classes=5).total == sum(each.numel() for each in model.parameters())
