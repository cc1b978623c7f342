"""Exactly BERT: parameter counts, and every number and gradient of transformers' model, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_models import distance, drawn_inputs, drawn_model, pad, places, small_config, twin

from bertsmith.model.config import ACTIVATIONS, BertConfig
from bertsmith.model.encoder import Encoder
from bertsmith.model.pretraining import PretrainingModel, PretrainInputs
from bertsmith.weights.names import to_huggingface

pytest.importorskip("transformers")

CLOSE = 1e-10
LARGE = BertConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)


@pytest.mark.parametrize(
    ("config", "encoder", "model"),
    [(BertConfig(), 109_482_240, 110_106_428), (LARGE, 335_141_888, 336_226_108)],
    ids=["base", "large"],
)
def test_parameter_counts(config: BertConfig, encoder: int, model: int) -> None:
    with torch.device("meta"):
        assert sum(each.numel() for each in Encoder(config).parameters()) == encoder
        assert sum(each.numel() for each in PretrainingModel(config).parameters()) == model


@st.composite
def configs(draw: st.DrawFn) -> BertConfig:
    heads = draw(st.integers(1, 4))
    # Fewer than some eight values leave a LayerNorm's gradient to rounding errors, theirs and ours.
    return small_config(
        vocab_size=draw(st.integers(2, 60)),
        num_attention_heads=heads,
        hidden_size=heads * draw(st.integers(-(-8 // heads), 10)),
        num_hidden_layers=draw(st.integers(1, 3)),
        intermediate_size=draw(st.integers(1, 30)),
        hidden_act=draw(st.sampled_from(ACTIVATIONS)),
        layer_norm_eps=draw(st.sampled_from([1e-12, 1e-5, 1e-2])),
        type_vocab_size=draw(st.integers(1, 3)),
    )


def theirs_on(theirs: Any, batch: PretrainInputs, lengths: list[int]) -> tuple[Any, torch.Tensor, torch.Tensor]:
    """transformers' outputs for the batch padded on the right, with rows and columns of its slots."""
    shape = (len(lengths), max(lengths) + 2)
    rows, columns = places(lengths, shape[1])
    labels = torch.full_like(batch.input_ids, -100)
    labels[batch.masked_positions] = batch.masked_labels
    out = theirs(
        input_ids=pad(batch.input_ids, rows, columns, shape),
        attention_mask=pad(torch.ones_like(batch.input_ids), rows, columns, shape),
        token_type_ids=pad(batch.token_type_ids, rows, columns, shape),
        labels=pad(labels, rows, columns, shape, filler=-100),
        next_sentence_label=batch.next_sentence_labels,
        output_hidden_states=True,
    )
    return out, rows, columns


@given(
    config=configs(),
    lengths=st.lists(st.one_of(st.integers(1, 20), st.just(0)), min_size=2, max_size=6).filter(any),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=25, deadline=None)
def test_everything_equals_transformers(config: BertConfig, lengths: list[int], seed: int) -> None:
    model, batch = drawn_model(config, seed).eval(), drawn_inputs(config, lengths, seed)
    # A label each at least, so that no mean is of nothing; an all-masked row (length 0) stays without.
    batch.masked_labels[:1] = 0
    if not len(batch.masked_labels):
        batch.masked_positions, batch.masked_labels = torch.tensor([0]), torch.tensor([1])
    theirs = twin(model).eval()
    expected, rows, columns = theirs_on(theirs, batch, lengths)

    hidden = model.encoder(batch.input_ids, batch.token_type_ids, batch.position_ids, batch.packed)
    assert distance(hidden, expected.hidden_states[-1][rows, columns]) < CLOSE
    there = torch.tensor(lengths) > 0
    pooled = model.encoder.pool(hidden, batch.packed)
    assert distance(pooled[there], theirs.bert.pooler(expected.hidden_states[-1])[there]) < CLOSE
    logits = model.masked_logits(hidden, torch.arange(len(hidden)))
    assert distance(logits, expected.prediction_logits[rows, columns]) < CLOSE
    pairs = model.next_sentence_logits(hidden, batch.packed)
    assert distance(pairs[there], expected.seq_relationship_logits[there]) < CLOSE

    masked, next_sentence = model.losses(batch)
    loss = masked.loss / masked.count + next_sentence.loss / next_sentence.count
    assert abs(loss - expected.loss) < CLOSE * abs(expected.loss)
    loss.backward()
    expected.loss.backward()
    check_gradients(model, theirs)


def check_gradients(model: PretrainingModel, theirs: Any) -> None:
    """Every parameter's. A key's bias has none in exact arithmetic, so its is held to the size of the others."""
    their_parameters = dict(theirs.named_parameters())
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    size = torch.stack([each.norm() for each in gradients.values() if each is not None]).max()
    assert len(gradients) == len(their_parameters)
    for name, ours in gradients.items():
        expected = their_parameters[to_huggingface(name)].grad
        assert ours is not None, name
        assert expected is not None, name
        assert (ours - expected).norm() < CLOSE * max(expected.norm(), 1e-3 * size), name


def test_the_row_of_padding_is_trained_as_any_other() -> None:
    config = small_config()
    model, batch = drawn_model(config), drawn_inputs(config, [6])
    batch.input_ids[2] = config.pad_token_id
    hidden = model.encoder(batch.input_ids, batch.token_type_ids, batch.position_ids, batch.packed)
    hidden.square().sum().backward()
    assert model.encoder.embeddings.word.weight.grad[config.pad_token_id].any()


@pytest.mark.parametrize("left", [False, True], ids=["right", "left"])
def test_padded_face_equals_transformers_on_either_side(left: bool) -> None:
    lengths, shape = [5, 0, 12, 1], (4, 14)
    config = small_config()
    model = drawn_model(config).eval()
    batch = drawn_inputs(config, lengths)
    rows, columns = places(lengths, shape[1], left)
    ids, kinds, mask = (
        pad(values, rows, columns, shape)
        for values in (batch.input_ids, batch.token_type_ids, torch.ones_like(batch.input_ids))
    )
    with torch.no_grad():
        ours = model.encoder.encode_padded(ids, mask, kinds)
        expected = twin(model).eval().bert(ids, attention_mask=mask, token_type_ids=kinds).last_hidden_state
    assert distance(ours, expected * mask[..., None]) < CLOSE
    assert not ours[mask == 0].any()


def test_padded_face_without_mask_or_types_takes_all_as_real_and_first() -> None:
    config = small_config()
    model = drawn_model(config).eval()
    ids = torch.randint(0, config.vocab_size, (3, 7), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert distance(model.encoder.encode_padded(ids), twin(model).eval().bert(ids).last_hidden_state) < CLOSE


@pytest.mark.parametrize("compute", [None, torch.bfloat16, torch.float16], ids=str)
def test_empty_and_fully_masked_input_is_never_nan(compute: torch.dtype | None) -> None:
    config = small_config()
    model = drawn_model(config, dtype=torch.float32, compute=compute).eval()
    ids = torch.ones(2, 6, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    assert torch.equal(model.encoder.encode_padded(ids, mask), torch.zeros(2, 6, 16))
    mask[1, :3] = 1
    out = model.encoder.encode_padded(ids, mask)
    assert bool(torch.isfinite(out).all())
    assert not out[0].any()
    batch = drawn_inputs(config, [0, 9, 0])
    masked, next_sentence = model.losses(batch)
    (masked.loss + next_sentence.loss).backward()
    assert int(next_sentence.count) == 1
    assert all(bool(torch.isfinite(each.grad).all()) for each in model.parameters() if each.grad is not None)


@pytest.mark.parametrize("compute", [None, torch.bfloat16], ids=str)
def test_a_micro_batch_without_sequences_adds_nothing(compute: torch.dtype | None) -> None:
    config = small_config()
    masked, next_sentence = drawn_model(config, dtype=torch.float32, compute=compute).losses(drawn_inputs(config, []))
    assert [float(each.loss.detach()) for each in (masked, next_sentence)] == [0, 0]
    assert [int(each.count) for each in (masked, next_sentence)] == [0, 0]
    (masked.loss + next_sentence.loss).backward()


def test_half_precision_is_near_the_wide_one_and_parameters_stay_wide() -> None:
    config, lengths = small_config(), [9, 20, 4]
    wide, narrow = (drawn_model(config, dtype=torch.float32, compute=each) for each in (None, torch.bfloat16))
    batch = drawn_inputs(config, lengths)
    hidden = [
        each.encoder(batch.input_ids, batch.token_type_ids, batch.position_ids, batch.packed) for each in (wide, narrow)
    ]
    assert hidden[1].dtype == torch.float32, "what layers add to stays wide"
    assert 0 < distance(hidden[1], hidden[0]) < 0.03
    for model in (wide, narrow):
        masked, next_sentence = model.losses(batch)
        (masked.loss / masked.count + next_sentence.loss / next_sentence.count).backward()
    for (name, ours), other in zip(narrow.named_parameters(), wide.parameters(), strict=True):
        assert ours.dtype == ours.grad.dtype == torch.float32
        if not name.endswith("key.bias"):
            assert distance(ours.grad, other.grad) < 0.1, name
