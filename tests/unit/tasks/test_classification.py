"""Labels, and the task model's arithmetic."""

import numpy as np
import pytest
import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.tasks.classification import (
    Classifier,
    class_counts,
    class_scores,
    config_labels,
    label_ids,
    label_names,
    names_of_config,
)
from bertsmith.tasks.records import Record
from bertsmith.tasks.sequences import encode, pack
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tokens.tokenizer import Tokenizer

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
CONFIG = BertConfig(
    vocab_size=16, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
    max_position_embeddings=16,
)  # fmt: skip


def records(*labels):
    return [Record("a", None, label, f"rows.csv:{line}") for line, label in enumerate(labels, start=2)]


@pytest.fixture
def classifier():
    model = Classifier(CONFIG, 3)
    initialise(model, 0.3, seed=0)
    return model.eval()


def test_labels_are_ordered_as_numbers_or_words():
    assert label_names(records("10", "9", "-1", "9")) == ["-1", "9", "10"]
    assert label_names(records("b", "10", "a")) == ["10", "a", "b"]
    with pytest.raises(BertsmithError, match="1 label"):
        label_names(records("a", "a"))


def test_an_unknown_label_is_named_by_its_row():
    with pytest.raises(BertsmithError) as caught:
        label_ids(records("cat", "dgo"), ["cat", "dog"])
    assert (caught.value.where, caught.value.fix) == ("rows.csv:3", "did you mean 'dog'?")
    assert label_ids(records("b", "a"), ["a", "b"]).tolist() == [1, 0]


def test_labels_go_through_a_config_and_back():
    names = [f"label {number}" for number in range(12)]
    assert names_of_config(config_labels(names)) == names
    with pytest.raises(BertsmithError, match="id2label"):
        names_of_config({"id2label": {"0": "a", "2": "b"}})


def test_counts_put_the_most_frequent_first():
    assert list(class_counts(records("a", "b", "b")).items()) == [("b", 2), ("a", 1)]


def test_the_loss_is_a_sum_over_rows_however_they_are_batched(classifier):
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=True)
    sequences = encode([Record(text, None, None, "") for text in ("a b c d", "e", "f g")], tokenizer, 16)
    labels, cpu = torch.tensor([0, 2, 1]), torch.device("cpu")

    def gradients(batches):
        classifier.zero_grad()
        losses = [classifier.loss(pack(sequences, np.array(each), cpu), labels[each]) for each in batches]
        sum(each.loss for each in losses).backward()
        return losses, {name: each.grad.clone() for name, each in classifier.named_parameters()}

    (whole,), at_once = gradients([[0, 1, 2]])
    parts, in_parts = gradients([[0, 2], [1]])
    assert int(whole.count) == 3
    torch.testing.assert_close(whole.loss, sum(each.loss for each in parts))
    for name, gradient in at_once.items():
        torch.testing.assert_close(gradient, in_parts[name], rtol=1e-4, atol=1e-6)


def test_scores_keep_the_order_of_the_rows(classifier):
    tokenizer = Tokenizer.from_vocabulary(PIECES, lowercase=True)
    texts = ["a", "a b c d e f", "c d", "b " * 9, "h g"]
    sequences = encode([Record(text, None, None, "") for text in texts], tokenizer, 16)
    cpu = torch.device("cpu")
    together = class_scores(classifier, sequences, cpu, budget_tokens=12)
    with torch.no_grad():
        alone = [classifier(pack(sequences, np.array([row]), cpu))[0].numpy() for row in range(len(texts))]
    np.testing.assert_allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize(
    "wrong", [{"epochs": 0}, {"warmup": 1.5}, {"learning_rate": 0.0}, {"dropout": 1.0}, {"max_length": 4}]
)
def test_settings_out_of_range_are_named(wrong):
    with pytest.raises(BertsmithError, match=next(iter(wrong))):
        FinetuneSettings(**wrong)
