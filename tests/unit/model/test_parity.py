"""Exactly BERT: parameter counts, and every number and gradient of transformers' model, in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.model.config import ACTIVATIONS, BertConfig
from bertsmith.model.encoder import Encoder
from bertsmith.model.losses import cross_entropy_sum
from bertsmith.model.pretraining import PretrainingModel, PretrainInputs
from made_models import distance, drawn_inputs, drawn_model, pad, places, small_config, twin
from made_parity import check_gradients, check_outputs, ours_on, theirs_on

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
        max_position_embeddings=draw(st.integers(1, 24)),
        intermediate_size=draw(st.integers(1, 30)),
        hidden_act=draw(st.sampled_from(ACTIVATIONS)),
        layer_norm_eps=draw(st.sampled_from([1e-12, 1e-5, 1e-2])),
        type_vocab_size=draw(st.integers(1, 3)),
    )


@st.composite
def batches(draw: st.DrawFn) -> tuple[BertConfig, PretrainInputs]:
    """A config and a ragged batch: empty sequences, single slots, and the longest that the positions allow."""
    config = draw(configs())
    most = config.max_position_embeddings
    length = st.one_of(st.integers(1, most), st.sampled_from([0, 1, most]))
    lengths = draw(st.lists(length, min_size=1, max_size=6).filter(any))
    batch = drawn_inputs(config, lengths, draw(st.integers(0, 2**31)), draw(st.sampled_from([0.35, 1.0])))
    # A batch without a masked word or pair has no mean to compare.
    batch.masked_labels[:1] = 0
    if not len(batch.masked_labels):
        batch.masked_positions, batch.masked_labels = torch.tensor([0]), torch.tensor([1])
    return config, batch


@given(drawn=batches(), seed=st.integers(0, 2**31))
@settings(max_examples=40, deadline=None)
def test_everything_equals_transformers(drawn: tuple[BertConfig, PretrainInputs], seed: int) -> None:
    config, batch = drawn
    # Larger weights drive attention to 0 and 1, where the gradients of queries and keys are rounding, theirs and ours.
    model = drawn_model(config, seed, deviation=0.15).eval()
    found, expected = ours_on(model, batch), theirs_on(twin(model).eval(), batch)
    check_outputs(found, expected, CLOSE)
    check_gradients(found, expected, CLOSE)


def test_the_tied_matrix_gets_the_gradient_of_both_its_uses() -> None:
    config = small_config()
    model, batch = drawn_model(config), drawn_inputs(config, [9, 4, 13])
    weight = model.encoder.embeddings.word.weight
    decoder = weight.detach().clone().requires_grad_()
    hidden = model.encoder(batch.input_ids, batch.token_type_ids, batch.position_ids, batch.packed)
    logits = model.masked_head(hidden[batch.masked_positions], decoder)
    cross_entropy_sum(logits, batch.masked_labels).loss.backward()
    apart = weight.grad + decoder.grad
    assert weight.grad.norm() > 0.01 * apart.norm()
    assert decoder.grad.norm() > 0.01 * apart.norm()
    model.zero_grad()
    model.losses(batch)[0].loss.backward()
    assert distance(weight.grad, apart) < 1e-13


@pytest.mark.parametrize("losses", [(1,), (0,), (0, 1), (1, 0)], ids=str)
def test_losses_alone_or_one_after_the_other_give_whole_gradients(losses: tuple[int, ...]) -> None:
    config = small_config()
    model, batch = drawn_model(config), drawn_inputs(config, [9, 4, 13])
    weight = model.encoder.embeddings.word.weight
    expected = torch.zeros_like(weight)
    for which in losses:
        hidden = model.encoder(batch.input_ids, batch.token_type_ids, batch.position_ids, batch.packed)
        logits, labels = (
            (model.next_sentence_logits(hidden, batch.packed), batch.next_sentence_labels)
            if which
            else (model.masked_logits(hidden, batch.masked_positions), batch.masked_labels)
        )
        expected += torch.autograd.grad(cross_entropy_sum(logits, labels).loss, weight)[0]
    for which in losses:
        model.losses(batch)[which].loss.backward()
    assert weight.grad is not None
    assert weight.grad.layout == torch.strided
    assert distance(weight.grad, expected) < 1e-13
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    torch.optim.AdamW(model.parameters()).step()


def test_the_config_says_how_much_is_added_to_a_variance() -> None:
    """With an epsilon as large as the variance the result is smaller by the root of two; in bf16 it stays wide."""
    config = small_config(layer_norm_eps=1.0)
    norms = [each for each in PretrainingModel(config).modules() if isinstance(each, torch.nn.LayerNorm)]
    x = torch.tensor([[1.0, -1.0] * 8])
    for norm in norms:
        torch.testing.assert_close(norm(x), x / 2**0.5)
        assert norm(x.bfloat16()).dtype == torch.float32
    assert len(norms) == 2 * config.num_hidden_layers + 2


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


def test_padding_between_is_left_out_as_transformers_does() -> None:
    config = small_config()
    model = drawn_model(config).eval()
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, config.vocab_size, (5, 14), generator=generator)
    mask = (torch.rand(ids.shape, generator=generator) < 0.6).long()
    with torch.no_grad():
        ours = model.encoder.encode_padded(ids, mask)
        expected = twin(model).eval().bert(ids, attention_mask=mask).last_hidden_state
    assert distance(ours, expected * mask[..., None]) < CLOSE


def test_padded_face_without_mask_or_types_takes_all_as_real_and_first() -> None:
    config = small_config()
    model = drawn_model(config).eval()
    ids = torch.randint(0, config.vocab_size, (3, 7), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert distance(model.encoder.encode_padded(ids), twin(model).eval().bert(ids).last_hidden_state) < CLOSE


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
