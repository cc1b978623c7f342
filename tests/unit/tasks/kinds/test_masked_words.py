"""Guesses for masks: of pieces that there are, for every mask of both texts."""

import math

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.inference.predictor import load_predictor
from made_heads import made_head
from made_rows import PIECES

CPU = {"device": "cpu", "precision": "fp32"}


def test_of_a_model_with_more_rows_than_pieces_the_others_have_no_part(tmp_path):
    """As one whose vocabulary was rounded up: no guess is one of them, and no probability is theirs."""
    folder = made_head("masked words", tmp_path / "model", vocab_size=len(PIECES) + 27)
    (answer,) = load_predictor(folder, **CPU, top=len(PIECES) + 1)(["word1 [MASK]"])
    (guesses,) = answer["guesses"]
    shares = {each["piece"]: each["probability"] for each in guesses}
    assert sorted(shares) == sorted(PIECES)
    assert sum(shares.values()) == pytest.approx(1, abs=1e-5)
    scored, nothing = load_predictor(folder, **CPU, likelihood=True)(["word1 word2", "\x01"])
    assert (nothing["log_likelihood"], nothing["tokens"], nothing["per_token"]) == (0.0, 0, None)
    assert math.exp(scored["pieces"][1]["log_likelihood"]) == pytest.approx(shares["word2"], rel=1e-4)


def test_every_mask_of_both_texts_is_answered_or_named(tmp_path):
    predictor = load_predictor(made_head("masked words", tmp_path / "model"), **CPU)
    both, second = predictor([{"text": "word1 [MASK]", "text_b": "[MASK]"}, {"text": "word1", "text_b": "a [MASK]"}])
    assert (len(both["guesses"]), len(second["guesses"])) == (2, 1)
    with pytest.raises(BertsmithError, match="past the tokens"):  # the first one is read
        predictor([f"[MASK] {'word1 ' * 50} [MASK]"])
