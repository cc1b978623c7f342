"""Input that a model cannot take is named, at the border of what it can; nothing is answered with garbage."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bertsmith.base.errors import BertsmithError
from bertsmith.model.encoder import Encoder, _warn_of_padding
from made_models import drawn_inputs, drawn_model, small_config

CONFIG = small_config(type_vocab_size=3)
IDS = torch.ones(2, 6, dtype=torch.int64)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return drawn_model(CONFIG).eval().encoder


def test_the_last_row_of_each_kind_is_there(encoder: Encoder) -> None:
    ids = torch.full((1, CONFIG.max_position_embeddings), CONFIG.vocab_size - 1)
    assert bool(torch.isfinite(encoder.encode_padded(ids, None, torch.full_like(ids, 2))).all())


@pytest.mark.parametrize(
    ("ids", "kinds", "what"),
    [
        (IDS * 40, IDS, "input id 40 has no row: this model has 40"),
        (-IDS, IDS, "input id -1 has no row"),
        (IDS, IDS * 3, "token type 3 has no row: this model has 3"),
        (IDS, -IDS, "token type -1 has no row"),
        (torch.ones(1, 25, dtype=torch.int64), None, "position 24 has no row: this model has 24"),
        (IDS[0], None, "shape [6]"),
        (IDS.float(), None, "torch.float32"),
        (IDS, IDS.float(), "token types are torch.float32"),
        (IDS, IDS[:, :5], "beside input ids of shape [2, 6]"),
    ],
)
def test_ids_without_a_row_or_of_another_shape_are_named(
    encoder: Encoder, ids: Tensor, kinds: Tensor | None, what: str
) -> None:
    with pytest.raises(BertsmithError) as caught:
        encoder.encode_padded(ids, None, kinds)
    assert what in caught.value.what
    assert caught.value.where
    assert caught.value.fix


@pytest.mark.parametrize(
    ("mask", "what"),
    [
        (torch.ones(2, 5), "beside input ids of shape [2, 6]"),
        (torch.ones(3, 6), "beside input ids of shape [2, 6]"),
        (torch.ones(2, 1, 1, 6), "shape [2, 1, 1, 6]"),
        (torch.full((2, 6), 0.5), "numbers other than 0 and 1"),
        (torch.tensor([[0.0, 0, 0, 0, -1e4, -1e4]] * 2), "numbers other than 0 and 1"),
        (torch.full((2, 6), torch.nan), "numbers other than 0 and 1"),
        (torch.zeros(2, 6), "0.0 everywhere, as an additive mask"),
    ],
)
def test_a_mask_that_could_be_misread_is_refused(encoder: Encoder, mask: Tensor, what: str) -> None:
    with pytest.raises(BertsmithError) as caught:
        encoder.encode_padded(IDS, mask)
    assert what in caught.value.what
    assert caught.value.where == "attention_mask"


def test_a_mask_of_whole_numbers_may_hide_all_and_one_of_nothing_may_be_of_floats(encoder: Encoder) -> None:
    assert not encoder.encode_padded(IDS, torch.zeros(2, 6, dtype=torch.int64)).any()
    assert not encoder.encode_padded(IDS, torch.zeros(2, 6, dtype=torch.bool)).any()
    assert encoder.encode_padded(IDS[:, :0], torch.zeros(2, 0)).shape[:2] == (2, 0)


@pytest.mark.parametrize("column", [0, -1])
def test_padding_without_a_mask_is_warned_of_once(
    encoder: Encoder, said: pytest.LogCaptureFixture, column: int
) -> None:
    _warn_of_padding.cache_clear()
    padded = IDS.clone()
    encoder.encode_padded(padded)
    padded[1, column] = CONFIG.pad_token_id
    encoder.encode_padded(padded, padded != CONFIG.pad_token_id)
    assert "attention_mask" not in said.text
    for _ in range(2):
        encoder.encode_padded(padded)
    assert sum("there is no attention_mask" in each for each in said.messages) == 1


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.uint8, torch.float32], ids=str)
def test_masks_ids_and_types_of_other_dtypes_mean_the_same(encoder: Encoder, dtype: torch.dtype) -> None:
    mask, kinds = IDS.clone(), IDS.clone()
    mask[0, 3:] = kinds[1, 2:] = 0
    expected = encoder.encode_padded(IDS, mask, kinds)
    whole = torch.int32 if dtype.is_floating_point else dtype
    ids = IDS.int() if dtype == torch.bool else IDS.to(whole)
    assert torch.equal(encoder.encode_padded(ids, mask.to(dtype), kinds.to(whole)), expected)


def test_arrays_and_lists_mean_the_same(encoder: Encoder) -> None:
    mask, kinds = IDS.clone(), IDS.clone()
    mask[0, 3:] = kinds[1, 2:] = 0
    given = (IDS, mask, kinds)
    expected = encoder.encode_padded(*given)
    for others in ([each.numpy() for each in given], [each.tolist() for each in given]):
        assert torch.equal(encoder.encode_padded(*others), expected)
    assert torch.equal(encoder.encode_padded(IDS.numpy().astype(np.uint16), mask, kinds), expected)


@pytest.mark.parametrize("wrong", [None, "ids", [[1, 2], [3]], [["a"]], IDS.to("meta")], ids=str)
def test_what_is_no_table_of_numbers_is_named(encoder: Encoder, wrong: Any) -> None:
    for given in ((wrong,), (IDS, wrong), (IDS, None, wrong)):
        if given[-1] is not None or len(given) == 1:
            with pytest.raises(BertsmithError, match="no table of numbers"):
                encoder.encode_padded(*given)


@pytest.mark.parametrize("wrong", ["bf16", torch.int64, 16], ids=str)
def test_products_are_of_floating_point_numbers(wrong: Any) -> None:
    with pytest.raises(BertsmithError, match="compute is"):
        Encoder(CONFIG, wrong)


@pytest.mark.parametrize("shape", [(0, 4), (2, 0), (0, 0)])
def test_no_rows_or_no_columns_give_none(encoder: Encoder, shape: tuple[int, int]) -> None:
    assert encoder.encode_padded(torch.zeros(shape, dtype=torch.int64)).shape == (*shape, CONFIG.hidden_size)


@pytest.mark.parametrize("name", ["input_ids", "token_type_ids", "position_ids"])
def test_packed_ids_are_looked_at_too(name: str) -> None:
    model, batch = drawn_model(CONFIG), drawn_inputs(CONFIG, [6, 3])
    getattr(batch, name)[4] = 99
    with pytest.raises(BertsmithError, match="99 has no row"):
        model.losses(batch)


@pytest.mark.parametrize("name", ["masked_labels", "next_sentence_labels"])
@pytest.mark.parametrize("change", [lambda labels: labels[:1], lambda labels: torch.cat([labels, labels])])
def test_a_loss_wants_a_label_for_each_row_of_scores(name: str, change: Any) -> None:
    model, batch = drawn_model(CONFIG), drawn_inputs(CONFIG, [6, 3])
    assert len(getattr(batch, name)) > 1
    setattr(batch, name, change(getattr(batch, name)))
    with pytest.raises(BertsmithError, match="beside scores of shape"):
        model.losses(batch)


def test_masked_positions_are_slots_of_packed_states(encoder: Encoder) -> None:
    model = drawn_model(CONFIG)
    hidden = torch.randn(9, CONFIG.hidden_size)
    assert model.masked_logits(hidden, torch.tensor([0, 8])).shape == (2, CONFIG.vocab_size)
    for wrong in (-1, 9):
        with pytest.raises(BertsmithError, match=f"masked position {wrong} is none of 9 slots"):
            model.masked_logits(hidden, torch.tensor([0, wrong]))
    padded = encoder.encode_padded(IDS)
    for states, positions in ((padded, torch.tensor([0])), (hidden, torch.tensor([[0]]))):
        with pytest.raises(BertsmithError, match="positions"):
            model.masked_logits(states, positions)
