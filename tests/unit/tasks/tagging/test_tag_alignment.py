"""Word pieces on words, spans on words, and windows over pieces."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.tasks.scoring.entities import Span
from bertsmith.tasks.tagging.align import NO_PIECE, Words, align_text, align_words, on_words, widened
from bertsmith.tasks.tagging.rows import word_offsets
from bertsmith.tasks.tagging.windows import home, windows
from bertsmith.tokens.tokenizer import Tokenizer

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{each}" for each in LETTERS), *".,'-é日\u0301"]
TOKENIZERS = {lowercase: Tokenizer.from_vocabulary(PIECES, lowercase) for lowercase in (False, True)}
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
WORDY = st.text(st.sampled_from("ab é\u0301\u200b\u00a0日İß-'.\n각\u037e"), max_size=30)


def aligned(words: list[str], tokenizer: Tokenizer) -> Words:
    return align_words([(words, word_offsets(words))], tokenizer)[0]


@pytest.mark.parametrize("lowercase", TOKENIZERS)
@given(st.lists(ANY_TEXT | WORDY, min_size=1, max_size=8))
def test_every_word_has_its_own_pieces_or_none(lowercase: bool, words: list[str]) -> None:
    tokenizer = TOKENIZERS[lowercase]
    found = aligned(words, tokenizer)
    text = " ".join(words)
    assert [text[start:end] for start, end in found.offsets] == words
    assert len(found.first) == len(words)
    borders = [*(first for first in found.first if first != NO_PIECE), len(found.pieces)]
    ends = iter(borders[1:])
    for word, first in zip(words, found.first, strict=True):
        own = [] if first == NO_PIECE else found.pieces[first : next(ends)].tolist()
        assert own == tokenizer.encode_by_library([word])[0]


@pytest.mark.parametrize("lowercase", TOKENIZERS)
@given(ANY_TEXT | WORDY)
def test_words_of_a_text_lie_in_it_in_order_with_all_its_pieces(lowercase: bool, text: str) -> None:
    tokenizer = TOKENIZERS[lowercase]
    found = align_text(text, tokenizer)
    assert found.pieces.tolist() == tokenizer.encode_by_library([text])[0]
    assert len(found.first) == len(found.offsets)
    assert (found.offsets >= 0).all()
    assert (found.offsets <= len(text)).all()
    assert (found.offsets[:, 0] < found.offsets[:, 1]).all()
    assert (found.offsets[:-1, 1] <= found.offsets[1:, 0]).all()
    assert not any(text[start:end][0].isspace() or text[start:end][-1].isspace() for start, end in found.offsets)
    borders = [*found.first, len(found.pieces)]
    for place, (start, end) in enumerate(found.offsets):
        own = found.pieces[borders[place] : borders[place + 1]].tolist()
        assert tokenizer.encode_by_library([text[start:end]])[0] == own


def test_a_word_that_the_normaliser_empties_has_no_piece() -> None:
    found = aligned(["a", "\u200b", "", "b-c"], TOKENIZERS[True])
    assert found.first.tolist() == [0, NO_PIECE, NO_PIECE, 1]
    assert len(found.pieces) == 4
    assert aligned(["\u200b"], TOKENIZERS[True]).pieces.tolist() == []
    assert align_text("\u200b", TOKENIZERS[True]).first.tolist() == []


def test_an_accent_that_is_taken_off_belongs_to_its_word() -> None:
    found = align_text("cafe\u0301 a", TOKENIZERS[True])
    assert found.offsets.tolist() == [[0, 5], [6, 7]]


TEXT = "New York-based Acme hired Ann ."
OFFSETS = align_text(TEXT, TOKENIZERS[True]).offsets


@pytest.mark.parametrize(
    ("marked", "whole", "wide"),
    [
        ("New York", (0, 2), (0, 2)),
        ("New York-based", (0, 4), (0, 4)),
        ("York", (1, 2), (1, 2)),
        (" Acme ", (4, 5), (4, 5)),
        ("Acm", None, (4, 5)),
        ("cme hir", None, (4, 6)),
        ("w Y", None, (0, 2)),
    ],
)
def test_spans_of_characters_on_words(marked: str, whole: tuple[int, int] | None, wide: tuple[int, int]) -> None:
    start = TEXT.index(marked)
    span = Span(start, start + len(marked), "x")
    expected = ([Span(*whole, "x")], []) if whole else ([], [span])
    assert on_words([span], OFFSETS) == expected
    assert widened([span], OFFSETS) == [Span(*wide, "x")]


def test_a_word_with_two_broken_spans_belongs_to_the_first() -> None:
    spans = [Span(15, 17, "a"), Span(17, 19, "b")]  # Ac me
    assert on_words(spans, OFFSETS) == ([], spans)
    assert widened(spans, OFFSETS) == [Span(4, 5, "a")]


def test_a_span_without_a_word_is_broken() -> None:
    text = "a \u200b b"
    offsets = align_text(text, TOKENIZERS[True]).offsets
    assert on_words([Span(2, 3, "x")], offsets) == ([], [Span(2, 3, "x")])
    assert widened([Span(2, 3, "x")], offsets) == []
    assert on_words([Span(0, 3, "x")], offsets) == ([Span(0, 1, "x")], [])


@given(st.lists(st.text("ab\u200b", max_size=3), min_size=1, max_size=7), st.data())
def test_spans_of_given_words_come_back_whatever_the_words_are(words: list[str], data: st.DataObject) -> None:
    offsets = word_offsets(words)
    start = data.draw(st.integers(0, len(words) - 1))
    end = data.draw(st.integers(start + 1, len(words)))
    span = Span(int(offsets[start, 0]), int(offsets[end - 1, 1]), "x")
    assert on_words([span], offsets) == ([Span(start, end, "x")], [])


@given(st.integers(0, 400), st.integers(1, 40), st.integers(0, 60))
def test_every_piece_has_one_window_and_no_other_has_more_context(pieces: int, room: int, overlap: int) -> None:
    spread = windows(pieces, room, overlap)
    places = np.arange(pieces)
    chosen = home(places, spread)
    assert ((chosen >= 0) & (chosen < len(spread))).all()
    starts, ends = spread[:, :1], spread[:, 1:]
    context = np.minimum(places - starts, ends - 1 - places)
    if pieces:
        assert (context[chosen, places] == context.max(0)).all()
        assert (context[chosen, places] >= 0).all()
        assert chosen.tolist() == context.argmax(0).tolist()
    if len(spread) > 1:
        assert (spread[:, 1] - spread[:, 0] == room).all()
        assert (spread[:-1, 1] - spread[1:, 0] >= min(overlap, room // 2)).all()
        stride = room - min(overlap, room // 2)
        assert len(spread) == 1 + -(-(pieces - room) // stride)
    assert spread[0, 0] == 0
    assert spread[-1, 1] == pieces


def test_a_text_that_fits_has_one_window() -> None:
    assert windows(10, 10, 4).tolist() == [[0, 10]]
    assert windows(0, 10, 4).tolist() == [[0, 0]]
    assert windows(11, 10, 4).tolist() == [[0, 10], [1, 11]]


def test_real_text_keeps_its_spans(real_data: Callable[[str], Path]) -> None:
    """Every run of white-space separated words of real text, marked by characters, is a span of words."""
    tokenizer = Tokenizer.load(real_data("weights/all-MiniLM-L6-v2"))
    lines = real_data("glue/CoLA/dev.tsv").read_text(encoding="utf-8").splitlines()[:300]
    for text in (line.split("\t")[3] for line in lines):
        offsets = align_text(text, tokenizer).offsets
        start = text.index(" ") + 1 if " " in text else 0
        whole, broken = on_words([Span(start, len(text), "x")], offsets)
        assert not broken
        assert text[offsets[whole[0].start, 0] : offsets[whole[0].end - 1, 1]] == text[start:].strip()
