"""Whichever library makes the ids of a corpus, they are those of transformers: all letters, real and random text."""

from __future__ import annotations

import itertools
import json
import random
import sys
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Engine

from bertsmith.base.errors import BertsmithError
from bertsmith.tokens import bulk_ids as fast_ids
from bertsmith.tokens.bulk_ids import bulk_encoder, choose_library, differing_code_points
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.tokens.tokenizer_files import SPECIAL_PIECES, engine_from_vocabulary
from bertsmith.tokens.vocabulary import train_vocabulary

pytest.importorskip("nanotoken", reason="the extra 'fast' is not installed")

SLOW, FAST = (f"{name} {fast_ids.version_of(name)}" for name in (fast_ids.TOKENIZERS, fast_ids.NANOTOKEN))
SENTENCES = ["The quick brown fox jumps, again.", "Straße, café, naïve, Москва, 東京: words (1,234.5).", "ΑΣ İI ﬁ ①"]


@cache
def every_letter() -> tuple[str, ...]:
    """A vocabulary in which all letters but those of the largest scripts are pieces of their own."""
    large = (
        "CJK UNIFIED",
        "HANGUL SYLLABLE",
        "TANGUT",
        "CJK COMPATIBILITY",
        "NUSHU",
        "KHITAN",
        "EGYPTIAN",
        "CUNEIFORM",
    )
    letters = [
        chr(code)
        for code in range(0x20, 0x20000)
        if (name := unicodedata.name(chr(code), "")) and not name.startswith(large)
    ]
    return (*SPECIAL_PIECES, *letters, *(f"##{letter}" for letter in letters))


@pytest.mark.parametrize("lowercase", [True, False])
def test_all_letters_give_the_same_ids(lowercase: bool) -> None:
    tokenizer = Tokenizer(engine_from_vocabulary(every_letter(), lowercase, "here"))
    # Beyond the second plane lie Chinese characters, tags and what is unassigned: every 64th stands for its like.
    points = [
        code for code in range(sys.maxunicode + 1) if code < 0x20000 or code % 64 == 1 or 0xE0000 <= code < 0xE0200
    ]
    assert differing_code_points(tokenizer, points) == []


def test_the_installed_versions_are_those_that_are_trusted_without_comparing() -> None:
    assert tuple(each.split()[1] for each in (SLOW, FAST)) in fast_ids.COMPARED_VERSIONS


@cache
def small(lowercase: bool, accents: bool | None, chinese: bool) -> Tokenizer:
    pieces = train_vocabulary(SENTENCES * 3, 512, lowercase).pieces
    return Tokenizer(engine_from_vocabulary(pieces, lowercase, "here", accents, chinese))


SETTINGS = list(itertools.product((True, False), (None, True, False), (True, False)))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=60), max_size=4),
    st.sampled_from(SETTINGS),
)
def test_random_unicode_by_either_library(texts: list[str], how: tuple[bool, bool | None, bool]) -> None:
    tokenizer = small(*how)
    expected = tokenizer.encode_by_library(texts)
    for library in (SLOW, FAST):
        ids, lengths = bulk_encoder(tokenizer, library).encode(texts)
        assert ids.dtype == np.uint16
        assert lengths.tolist() == list(map(len, expected))
        assert ids.tolist() == list(itertools.chain(*expected))


def test_what_no_text_holds_by_chance_by_either_library() -> None:
    tokenizer = small(True, None, True)
    texts = ["", " ", "x" * 100, "x" * 101, "fox" * 50, "[MASK] [SEP]fox[CLS]", "##fox a##fox", "\u0000", "f\u0000ox"]
    expected = tokenizer.encode_by_library(texts)
    assert not set(itertools.chain(*expected)) & {tokenizer.special.mask, tokenizer.special.sep, tokenizer.special.cls}
    for library in (SLOW, FAST):
        ids, lengths = bulk_encoder(tokenizer, library).encode(texts)
        assert (ids.tolist(), lengths.tolist()) == (list(itertools.chain(*expected)), list(map(len, expected)))
        assert all(part.size == 0 for part in bulk_encoder(tokenizer, library).encode([]))


def lines_to_compare(real_data: Callable[[str], Path]) -> list[str]:
    """3,000 real lines and 3,000 of random Unicode, words as long as real ones."""
    texts = (
        real_data("wiki/enwiki-2015/AB/wiki_03").read_text()[:1_000_000],
        *(path.read_text(errors="replace") for path in sorted(real_data("books/gutenberg").iterdir())[:4]),
    )
    real = [line for text in texts for line in text.split("\n") if line]
    draw = random.Random(1)

    def letter() -> str:
        kind = draw.random()
        most = 0x250 if kind < 0.4 else 0x3000 if kind < 0.7 else 0xD800 if kind < 0.9 else 0x110000
        code = draw.randrange(0x20, most)
        return " " if kind < 0.1 or 0xD800 <= code < 0xE000 else chr(code)

    return real[::5][:3000] + ["".join(letter() for _ in range(30)) for _ in range(3000)]


@pytest.mark.parametrize("casing", ["uncased", "cased"])
def test_ids_are_those_of_transformers(casing: str, tmp_path: Path, real_data: Callable[[str], Path]) -> None:
    from transformers import BertTokenizer

    ours = Tokenizer.load(real_data(f"vocab/bert-base-{casing}/vocab.txt"))
    lines = lines_to_compare(real_data)
    assert len(lines) == 6000
    ours.save(tmp_path)
    theirs = BertTokenizer.from_pretrained(tmp_path, model_max_length=10**9)
    only = {"add_special_tokens": False, "return_attention_mask": False, "return_token_type_ids": False}
    expected = theirs(lines, **only)["input_ids"]
    for library in (SLOW, FAST):
        ids, lengths = bulk_encoder(ours, library).encode(lines)
        assert lengths.tolist() == list(map(len, expected))
        assert np.array_equal(ids, np.fromiter(itertools.chain(*expected), np.uint16))


@pytest.mark.parametrize("casing", ["uncased", "cased"])
def test_ids_of_real_lines_are_those_of_the_original_in_python(
    casing: str, tmp_path: Path, real_data: Callable[[str], Path]
) -> None:
    from transformers import BertTokenizerLegacy

    ours = Tokenizer.load(real_data(f"vocab/bert-base-{casing}/vocab.txt"))
    theirs = BertTokenizerLegacy(str(real_data(f"vocab/bert-base-{casing}/vocab.txt")), do_lower_case=ours.lowercase)
    lines = lines_to_compare(real_data)[:600]
    ids, lengths = bulk_encoder(ours, FAST).encode(lines)
    expected = [theirs.convert_tokens_to_ids(theirs.tokenize(line)) for line in lines]
    assert [each.tolist() for each in np.split(ids, np.cumsum(lengths)[:-1])] == expected


def test_the_choice_is_said_and_held_to(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = small(True, None, True)
    with caplog.at_level("INFO", "bertsmith"):
        assert choose_library(tokenizer) == FAST
    state = json.loads(tokenizer._with_specials.to_str())
    added = {**state["added_tokens"][0], "id": tokenizer.size, "content": "fox jumps", "normalized": True}
    with_added = json.dumps({**state, "added_tokens": [*state["added_tokens"], added]})
    assert choose_library(Tokenizer(Engine.from_str(with_added))) == SLOW
    with pytest.raises(BertsmithError, match=r"nanotoken 9\.9, but nanotoken"):
        bulk_encoder(tokenizer, "nanotoken 9.9")
    monkeypatch.setattr(fast_ids, "COMPARED_VERSIONS", frozenset())
    monkeypatch.setattr(fast_ids.sys, "maxunicode", 0x2000)
    fast_ids._compared.cache_clear()
    assert choose_library(tokenizer) == FAST, "other versions are compared first"
    fast_ids._compared.cache_clear()
    encode = fast_ids._Fast.encode

    def wrong(self: fast_ids._Fast, texts: list[str]) -> tuple[fast_ids.Ids, np.ndarray]:
        return encode(self, [text.replace("\u0416", "x") for text in texts])

    monkeypatch.setattr(fast_ids._Fast, "encode", wrong)
    with caplog.at_level("INFO", "bertsmith"):
        assert choose_library(tokenizer) == SLOW
    assert "differs in 1 code point, such as U+0416" in caplog.text
    fast_ids._compared.cache_clear()
    monkeypatch.setattr(fast_ids, "version_of", lambda name: None if name == "nanotoken" else "1")
    with caplog.at_level("INFO", "bertsmith"):
        assert choose_library(tokenizer) == "tokenizers 1"
    assert "nanotoken is not installed" in caplog.text
