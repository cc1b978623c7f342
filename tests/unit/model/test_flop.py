"""The formula of a step's operations equals a count by hand and what PyTorch counts, and says what it leaves out."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from bertsmith.bench.step.made_batches import pretrain_batch
from bertsmith.model.config import BertConfig
from bertsmith.model.flop import peak_flops, step_flop
from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.tasks.kinds.pooled import Classifier
from bertsmith.tasks.sequences import Sequences, pack
from bertsmith.training.pretraining.inputs import to_inputs


def flop_of_batch(config: BertConfig, batch) -> float:
    lengths = batch.layout.lengths
    return step_flop(config, lengths.sum(), (lengths**2).sum(), len(batch.masked_positions), len(lengths))


def counted(config: BertConfig, batch) -> int:
    """The operations of all matrix products of a forward and a backward pass."""
    model = PretrainingModel(config).train()
    initialise(model, 0.02, seed=0)
    with FlopCounterMode(display=False) as counter:
        masked, next_sentence = model.losses(to_inputs(batch, torch.device("cpu")))
        (masked.loss + next_sentence.loss).backward()
    return counter.get_total_flops()


def test_a_count_by_hand():
    """Two sequences of 3 and 5 tokens, two masked; every product is written out as 2 x rows x inputs x outputs."""
    config = BertConfig(vocab_size=11, hidden_size=4, num_hidden_layers=1, num_attention_heads=2, intermediate_size=7)
    query_key_value_output = 4 * (2 * 8 * 4 * 4)
    feed_forward = 2 * (2 * 8 * 4 * 7)
    scores_and_mixing = 2 * (2 * 3 * 3 * 4) + 2 * (2 * 5 * 5 * 4)
    word_head = 2 * 2 * 4 * 4 + 2 * 2 * 4 * 11
    pooler_and_pairs = 2 * 2 * 4 * 4 + 2 * 2 * 4 * 2
    forward = query_key_value_output + feed_forward + scores_and_mixing + word_head + pooler_and_pairs
    assert step_flop(config, tokens=8, squared_lengths=9 + 25, masked=2, sequences=2) == 3 * forward
    encoder = query_key_value_output + feed_forward + scores_and_mixing
    assert step_flop(config, tokens=8, squared_lengths=34) == 3 * encoder
    three_classes = 2 * 2 * 4 * 4 + 2 * 2 * 4 * 3
    assert step_flop(config, 8, 34, sequences=2, classes=3) == 3 * (encoder + three_classes)


@settings(max_examples=6, deadline=None)
@given(
    layers=st.integers(1, 3),
    heads=st.sampled_from([1, 2, 4]),
    inner=st.sampled_from([48, 96]),
    length=st.sampled_from([16, 32, 64]),
    dropout=st.sampled_from([0.0, 0.1]),
)
def test_the_formula_counts_every_product(layers, heads, inner, length, dropout):
    """Sequences of round and equal lengths, so that nothing is padded and no batch is filled up."""
    config = BertConfig(
        vocab_size=160,
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
        attention_probs_dropout_prob=dropout,
    )
    sequences = 16
    batch = pretrain_batch(np.full(sequences, length), config.vocab_size)
    masked = len(batch.masked_positions)
    assert masked % 16 == 0, "else the head would be filled up"
    left_out = counted(config, batch) - flop_of_batch(config, batch)
    # Token types are looked up by a product with one-hot rows, forward and for their gradient.
    types = 2 * 2 * batch.layout.tokens * config.type_vocab_size * config.hidden_size
    assert left_out in (0, types)


@pytest.mark.parametrize("layers", [1, 3])
def test_a_classifier_computes_the_last_layer_for_one_token_of_each_sequence(layers):
    config = BertConfig(
        vocab_size=160, hidden_size=32, num_hidden_layers=layers, num_attention_heads=2, intermediate_size=64
    )
    batch = pretrain_batch(np.full(16, 32), config.vocab_size)
    model = Classifier(config, 3).train()
    initialise(model, 0.02, seed=0)
    sequences = Sequences(list(batch.input_ids.reshape(16, 32)), np.full(16, 9), np.zeros(16), np.arange(16))
    with FlopCounterMode(display=False) as counter:
        model(pack(sequences, np.arange(16), torch.device("cpu"))).sum().backward()
    types = 2 * 2 * batch.layout.tokens * config.type_vocab_size * config.hidden_size
    formula = step_flop(config, 16 * 32, 16 * 32**2, sequences=16, classes=3, pooled=True)
    assert counter.get_total_flops() - formula in (0, types)
    assert formula < step_flop(config, 16 * 32, 16 * 32**2, sequences=16, classes=3)


def test_what_is_padded_is_computed_and_not_counted():
    config = BertConfig(
        vocab_size=160, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    ragged = pretrain_batch(np.array([17, 33, 60]), config.vocab_size)
    assert counted(config, ragged) > 1.05 * flop_of_batch(config, ragged)
    alone = [pretrain_batch(np.array([length]), config.vocab_size) for length in (17, 33, 60)]
    together = sum(len(each.masked_positions) for each in alone)
    assert together == len(ragged.masked_positions)
    assert flop_of_batch(config, ragged) == sum(flop_of_batch(config, each) for each in alone)


@pytest.mark.parametrize(
    ("gpu", "precision", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989.5),
        ("NVIDIA H100 PCIe", "bf16", 756.5),
        ("NVIDIA A100-SXM4-80GB", "tf32", 156.0),
        ("NVIDIA H200", "fp32", 67.0),
        ("Tesla T4", "bf16", None),
        ("NVIDIA GeForce RTX 4090", "bf16", None),
    ],
)
def test_a_peak_is_known_by_the_name_of_the_gpu_or_not_at_all(gpu, precision, tflops):
    assert peak_flops(gpu, precision) == (tflops and 1e12 * tflops)
