"""Runs of words by array arithmetic: equal where a plain reading says equal, different where it says different."""

from __future__ import annotations

import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.corpus.filters import ngrams
from bertsmith.corpus.filters.ngrams import words_of

words_of(["the tables of characters are made here, not within the time that a test may take"])
TEXTS = st.lists(
    st.text(st.sampled_from("aAbBßé\u0301ǅ9_-.,'’ \n\t\u00a0\u200b東京かの\u4dbf\U00020000😀"), max_size=40), max_size=6
)


def plain_words(text: str) -> list[str]:
    """The same rule, character by character."""
    words, held = list[str](), ""
    for char in f"{text} ":
        inside = unicodedata.category(char)[0] in "LMN"
        alone = inside and any(first <= ord(char) <= last for first, last in ngrams._IDEOGRAPHS)
        if held and (alone or not inside):
            words.append(held)
            held = ""
        folded = char.casefold() if len(char.casefold()) == 1 else char
        if alone:
            words.append(folded)
        elif inside:
            held += folded
    return words


@given(TEXTS)
def test_words_are_those_of_a_plain_reading(texts: list[str]) -> None:
    found = words_of(texts)
    expected = [(place, word) for place, text in enumerate(texts) for word in plain_words(text)]
    assert found.texts.tolist() == [place for place, _ in expected]
    by_word: dict[str, int] = {}
    for (_, word), value in zip(expected, found.hashes.tolist(), strict=True):
        assert by_word.setdefault(word, value) == value
    assert len(set(by_word.values())) == len(by_word)


@pytest.mark.parametrize("block", [16, 64])
@given(texts=st.lists(st.text(st.sampled_from("ab東 .\n"), max_size=90), max_size=4))
def test_blocks_make_no_difference(block: int, texts: list[str]) -> None:
    words = [" ".join(part[:9] for part in text.split(" ")) for text in texts]
    whole = words_of(words)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ngrams, "_BLOCK", block)
        cut = words_of(words)
    assert np.array_equal(whole.hashes, cut.hashes)
    assert np.array_equal(whole.starts, cut.starts)
    assert np.array_equal(whole.ends, cut.ends)


@given(TEXTS, st.integers(1, 5))
def test_runs_are_those_of_a_plain_reading(texts: list[str], size: int) -> None:
    found = words_of(texts)
    hashes, firsts = found.ngrams(size)
    by_text = [plain_words(text) for text in texts]
    expected = [
        tuple(words[place : place + size]) for words in by_text for place in range(max(len(words) - size + 1, 0))
    ]
    assert len(hashes) == len(firsts) == len(expected)
    by_run = dict(zip(expected, hashes.tolist(), strict=True))
    assert [by_run[run] for run in expected] == hashes.tolist()
    assert len(set(by_run.values())) == len(by_run)


def test_what_a_run_is_shown_as() -> None:
    words = words_of(["Nothing here.", 'Mr. "Smith"  went\n(home)!'])
    _, firsts = words.ngrams(3)
    assert [words.show(first, 3) for first in firsts.tolist()] == ['Mr. "Smith" went', 'Smith" went (home']
    assert words.counts(2).tolist() == [2, 4]


def test_the_hash_is_the_same_on_every_machine_and_in_every_version() -> None:
    assert [hex(value) for value in words_of(["Ab, ab; é"]).hashes.tolist()] == [
        "0x8c526bf4c7d204b6",
        "0x8c526bf4c7d204b6",
        "0x15190e38ee7c5c5",
    ]
