"""Cleaning, hashing and splitting into sentences: what is altered is counted, what is text is kept."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.base.tally import Tally
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import LINE_BREAKS, LineBreaks
from bertsmith.corpus.stages import sentences
from bertsmith.corpus.stages.normalise import clean_text, text_hash
from bertsmith.corpus.stages.sentences import LONGEST_SENTENCE_CHARACTERS, chunks, has_rules, sentences_of

WITH_RULES = "en am ar bg bn ca da de el es fi fr gu hi hy it ja kk kn ml mr my nl pa pl pt ru sk ta te uk"


def clean(text: str) -> tuple[str, dict[str, int]]:
    changed = Tally()
    return clean_text(text, "a", changed), {what: entry.count for what, entry in changed.items()}


def test_what_cleaning_does() -> None:
    assert clean("plain text\nstays as it is") == ("plain text\nstays as it is", {})
    assert clean("cafe\u0301 ²½ ﬁ") == ("café ²½ ﬁ", {"documents brought to Unicode NFC": 1})
    assert clean("a\r\nb\rc\x0cd\u2028e\x85f") == ("a\nb\nc\nd\ne\nf", {})
    assert clean("a\x00b\x1fc\x7f\x9fd\t.") == ("abcd\t.", {"control characters, left out": 4})
    assert clean("say [MASK] and [SEP], [unused12] [unused] [mask]") == (
        "say [MASK] and [SEP], [unused12] [unused] [mask]",
        {"special tokens written in a text, read as plain text": 3},
    )
    assert clean("so\xadft \ufeffhy\u200bphen") == ("soft hyphen", {"invisible characters, left out": 3})
    assert clean("lo\ufffdst") == ("lost", {"characters that were lost before (U+FFFD), left out": 1})


def test_what_is_left_out_brings_letters_and_accents_together_before_unicode_is_normalised() -> None:
    assert clean("e\u200b\u0301e\x07\u0301e\ufffd\u0301")[0] == "ééé"


def test_white_space_of_any_width_becomes_plain_and_tabs_stay() -> None:
    for space in "\xa0\u1680\u2000\u2003\u200a\u202f\u205f\u3000":
        assert clean(f"a{space}b") == ("a b", {})
    assert clean("a\tb") == ("a\tb", {})


@given(st.text())
def test_cleaning_twice_is_cleaning_once(text: str) -> None:
    once = clean(text)[0]
    assert clean(once)[0] == once
    assert unicodedata.is_normalized("NFC", once)


@given(st.lists(st.text(st.sampled_from("abé東[#"), min_size=1)), st.sampled_from([" ", "\n", "\t \n"]))
def test_the_hash_disregards_white_space_and_nothing_else(words: list[str], space: str) -> None:
    text = " ".join(words)
    assert text_hash(space.join(words).encode()) == text_hash(text.encode())
    assert text_hash(text.encode()) != text_hash(f"{text}x".encode())


@given(st.text(st.sampled_from('aB. \n\t!?。é\u00a0"(')), st.sampled_from(LINE_BREAKS))
def test_sentences_lose_nothing_but_white_space(text: str, line_breaks: LineBreaks) -> None:
    found = sentences_of(text, line_breaks, "en", Tally())
    assert "".join("".join(found).split()) == "".join(text.split())
    assert all(sentence == sentence.strip() and sentence for sentence in found)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_sentences_of_any_unicode_lose_nothing(text: str) -> None:
    assert "".join("".join(sentences_of(text, "wrap", "en", Tally())).split()) == "".join(text.split())


def test_line_breaks_mean_what_the_kind_says() -> None:
    text = "A heading\nMr. Smith went\nhome. He slept.\n\nNext"
    changed = Tally()
    assert sentences_of(text, "wrap", "en", changed) == ["A heading\nMr. Smith went\nhome.", "He slept.", "Next"]
    assert sentences_of(text, "paragraph", "en", changed) == [
        "A heading",
        "Mr. Smith went",
        "home.",
        "He slept.",
        "Next",
    ]
    assert sentences_of(text, "sentence", "en", changed) == ["A heading", "Mr. Smith went", "home. He slept.", "Next"]
    assert sentences_of("A heading\n \t\nNext", "wrap", "en", changed) == ["A heading", "Next"]
    assert not changed


def test_spaces_of_several_bytes_end_no_run() -> None:
    text = clean("a.\u00a0Really?\u00a0Yes!\u3000So")[0]
    assert sentences_of(text, "wrap", "en", Tally()) == ["a. Really?", "Yes!", "So"]


_WORDS = ["Dr.", "Who", "came", "early.", "(It", "rained!)", "Then", '"why?"', "asked", "U.S.", "x" * 700]


@given(st.lists(st.sampled_from(_WORDS), min_size=1, max_size=300))
def test_sentences_of_a_long_paragraph_lose_nothing(words: list[str]) -> None:
    found = sentences_of(" ".join(words), "wrap", "en", Tally())
    assert "".join("".join(found).split()) == "".join(words)


def test_a_long_paragraph_is_split_as_its_sentences_are() -> None:
    wanted = [f"Mr. Smith went to house {number} at 5 p.m. today." for number in range(1_000)]
    assert sentences_of(" ".join(wanted), "wrap", "en", Tally()) == wanted
    # One quote that is never closed does not hide the ends behind the window that it stands in.
    quoted = sentences_of('He said: "no. ' + " ".join(wanted), "wrap", "en", Tally())
    assert quoted[-900:] == wanted[-900:]


class PanicException(BaseException):
    """As a fault inside the segmenter arrives."""


@pytest.mark.parametrize("fault", ["panic", "loss"])
def test_a_paragraph_that_breaks_the_segmenter_is_kept_and_counted(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    def broken(language: str, text: str) -> list[str]:
        if fault == "panic":
            raise PanicException("index is not a char boundary")
        return [text[:-1]]

    monkeypatch.setattr(sentences, "segment", broken)
    changed = Tally()
    assert sentences_of("One here.\nTwo there.", "wrap", "en", changed) == ["One here.", "Two there."]
    assert changed.count == 1


@pytest.mark.parametrize(("languages", "known"), [(WITH_RULES, True), ("xx qqq eng", False)])
def test_languages_with_rules_are_told_from_those_that_are_split_as_english(languages: str, known: bool) -> None:
    assert {code: has_rules(code) for code in languages.split()} == dict.fromkeys(languages.split(), known)


def test_a_monster_line_is_cut_and_counted() -> None:
    changed = Tally()
    line = "word " * 100_000
    found = sentences_of(line, "wrap", "en", changed)
    assert max(map(len, found)) <= LONGEST_SENTENCE_CHARACTERS
    assert " ".join(found) == line.strip()
    assert changed.count >= len(found) - 4


@given(st.text(st.sampled_from("ab \n")), st.integers(1, 9))
def test_chunks_join_to_the_text(text: str, most: int) -> None:
    found = list(chunks(text, most))
    assert "".join(found) == text
    assert all(len(chunk) <= most for chunk in found)


def test_accounts_add_up_in_source_order_and_survive_json() -> None:
    parts = []
    for part in range(3):
        account = Account(stream_bytes=10)
        for number in range(2):
            account.read(5)
            account.drop("short", 5, f"{part}.{number}")
        parts.append(account)
    whole = Account()
    for account in parts:
        whole.add(Account.from_json(account.to_json()))
    assert (whole.stream_bytes, whole.documents, whole.bytes, whole.dropped.count, whole.dropped.bytes) == (
        30,
        6,
        30,
        6,
        30,
    )
    assert whole.dropped["short"].examples == ["0.0", "0.1", "1.0"]
