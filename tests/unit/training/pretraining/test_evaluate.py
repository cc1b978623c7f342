"""Evaluation and its baselines against a recomputation in numpy, word by word."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.layout import Layout
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.packing import PretrainBatch
from bertsmith.batches.steps import held_out_batches
from bertsmith.model.attention.packed import Packed
from bertsmith.model.config import BertConfig
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel, PretrainInputs
from bertsmith.training.pretraining.evaluate import baselines
from bertsmith.training.pretraining.inputs import to_inputs
from bertsmith.training.pretraining.objective import Pretraining
from made_runs import corpus

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def batches() -> list[PretrainBatch]:
    made = held_out_batches(
        corpus(), sequence_length=45, instances=30, masking=MaskingSettings(), micro_batch_tokens=300, seed=3
    )
    assert len(made) > 2
    return made


@pytest.fixture(scope="module")
def model() -> PretrainingModel:
    config = BertConfig(
        vocab_size=512, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24
    )
    model = PretrainingModel(config)
    initialise(model, 0.5, seed=1)
    return model.train()


def log_softmax(scores: np.ndarray) -> np.ndarray:
    scores = scores - scores.max(-1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(-1, keepdims=True))


def test_figures_equal_a_recomputation(model: PretrainingModel, batches: list[PretrainBatch]) -> None:
    alphabetic = corpus().tokenizer().is_alphabetic
    found = Pretraining(model, CPU, alphabetic).measure(batches)
    assert model.training, "the mode is left as it was, and dropout was off meanwhile"
    words, pairs = [], []
    model.eval()
    with torch.no_grad():
        for batch in batches:
            inputs = to_inputs(batch, CPU)
            hidden = model.encoder(inputs.input_ids, inputs.token_type_ids, inputs.position_ids, inputs.packed)
            scores = log_softmax(model.masked_logits(hidden, inputs.masked_positions).double().numpy())
            pair_scores = log_softmax(model.next_sentence_logits(hidden, inputs.packed).double().numpy())
            # What lies behind the batch's own rows fills it up to a round size, and is asked nothing.
            words += [
                (-row[label], row.argmax() == label, alphabetic[label])
                for row, label in zip(scores, batch.masked_labels, strict=False)
            ]
            pairs += [
                (-row[label], row.argmax() == label)
                for row, label in zip(pair_scores, batch.next_sentence_labels, strict=False)
            ]
    model.train()
    assert found.masked_words == len(words) == sum(len(batch.masked_labels) for batch in batches)
    assert found.sequences == len(pairs) == 30
    assert found.masked_loss == pytest.approx(np.mean([loss for loss, _, _ in words]), rel=1e-5)
    assert found.masked_accuracy == pytest.approx(np.mean([right for _, right, _ in words]), abs=1e-12)
    assert found.masked_accuracy_alphabetic == pytest.approx(
        np.mean([right for _, right, letters in words if letters]), abs=1e-12
    )
    assert found.next_sentence_loss == pytest.approx(np.mean([loss for loss, _ in pairs]), rel=1e-5)
    assert found.next_sentence_accuracy == pytest.approx(np.mean([right for _, right in pairs]), abs=1e-12)
    assert Pretraining(model, CPU, alphabetic).measure(batches) == found
    without = Pretraining(model, CPU, np.zeros_like(alphabetic)).measure(batches).as_record()
    assert found.as_record().keys() - without.keys() == {"masked_accuracy_alphabetic"}, "a mean of nothing is none"


def test_a_model_that_knows_the_answers_is_right(model: PretrainingModel, batches: list[PretrainBatch]) -> None:
    """Embeddings of one-hot length make the model repeat its input: with the words shown it is always right."""
    shown = []
    for batch in batches:
        ids = batch.input_ids.copy()
        ids[batch.masked_positions] = batch.masked_labels
        shown.append(PretrainBatch(**{**vars(batch), "input_ids": ids}))
    repeater = PretrainingModel(
        BertConfig(vocab_size=512, hidden_size=512, num_hidden_layers=1, num_attention_heads=1, intermediate_size=1)
    )
    with torch.no_grad():
        for name, parameter in repeater.named_parameters():
            parameter.fill_(1.0 if name.endswith("norm.weight") else 0.0)
        repeater.encoder.embeddings.word.weight.copy_(torch.eye(512))
        repeater.masked_head.transform.weight.copy_(torch.eye(512))
    everything = np.ones(512, dtype=np.bool_)
    assert Pretraining(repeater, CPU, everything).measure(shown).masked_accuracy == 1.0
    assert Pretraining(repeater, CPU, everything).measure(batches).masked_accuracy == pytest.approx(0.1, abs=0.06)


def batch_of(labels: list[int]) -> PretrainBatch:
    count = len(labels)
    ids = np.zeros(count + 3, dtype=np.int64)
    layout = Layout.from_lengths([count + 3])
    return PretrainBatch(
        ids, ids, layout.positions, layout, np.arange(count), np.array(labels, dtype=np.int64), np.zeros(1, np.int64)
    )


@given(
    labels=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=8), min_size=1, max_size=4),
    unigrams=st.lists(st.integers(0, 50), min_size=6, max_size=6).filter(any),
    letters=st.lists(st.booleans(), min_size=6, max_size=6),
)
@settings(max_examples=80, deadline=None)
def test_baselines_equal_counting(labels: list[list[int]], unigrams: list[int], letters: list[bool]) -> None:
    found = baselines([batch_of(each) for each in labels], np.array(unigrams), np.array(letters))
    words = [label for each in labels for label in each]
    total, counts = sum(unigrams), Counter(words)
    shares = [count / total for count in unigrams if count]
    assert found["unigram_entropy"] == pytest.approx(-sum(share * np.log(share) for share in shares), abs=1e-12)
    expected = -sum(count * np.log((unigrams[word] + 1) / (total + 6)) for word, count in counts.items()) / len(words)
    assert found["unigram_loss"] == pytest.approx(expected, rel=1e-12)
    assert found["most_frequent_accuracy"] == pytest.approx(counts[int(np.argmax(unigrams))] / len(words))
    of_letters = [word for word in words if letters[word]]
    if of_letters:
        best = max((number for number in range(6) if letters[number]), key=lambda number: (unigrams[number], -number))
        assert found["most_frequent_alphabetic_accuracy"] == pytest.approx(of_letters.count(best) / len(of_letters))
    else:
        assert "most_frequent_alphabetic_accuracy" not in found


def test_filling_up_to_a_round_size_changes_no_loss_and_no_gradient(
    model: PretrainingModel, batches: list[PretrainBatch]
) -> None:
    exact = copy.deepcopy(model).double().eval()

    def outcome(batch: PretrainBatch, filled: bool) -> tuple[list[float], list[torch.Tensor]]:
        exact.zero_grad()
        if filled:
            inputs = to_inputs(batch, CPU)
        else:
            arrays = (
                torch.from_numpy(getattr(batch, each.name))
                for each in fields(batch)
                if each.name not in ("layout", "filling")
            )
            ids, kinds, positions, masked, labels, pairs = arrays
            inputs = PretrainInputs(ids, kinds, positions, Packed(batch.layout), masked, labels, pairs)
        sums = exact.losses(inputs)
        (sums[0].loss + sums[1].loss).backward()
        figures = [float(value.detach()) for each in sums for value in (each.loss, each.count, each.right)]
        return figures, [each.grad.clone() for each in exact.parameters() if each.grad is not None]

    assert any(len(to_inputs(batch, CPU).input_ids) > batch.layout.tokens for batch in batches), "something is filled"
    for batch in batches[:2]:
        (figures, gradients), (plain, plain_gradients) = outcome(batch, True), outcome(batch, False)
        assert figures == pytest.approx(plain, rel=1e-12)
        for ours, theirs in zip(gradients, plain_gradients, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-10, atol=1e-12)
