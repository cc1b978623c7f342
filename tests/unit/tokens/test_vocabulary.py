"""Words that are counted for a vocabulary, and those that are too long for BERT."""

from __future__ import annotations

import pytest

from bertsmith.base.tally import Tally
from bertsmith.tokens.vocabulary import choose_alphabet, count_words, long_words, normalizer_for, train_vocabulary


def test_words_are_those_of_the_tokenizer() -> None:
    left_out = Tally()
    counts = count_words(["Don't stop.\nCafé café", f"{'é' * 101} 東京"], lowercase=True, left_out=left_out)
    assert counts == {"don": 1, "'": 1, "t": 1, "stop": 1, ".": 1, "cafe": 2, "東": 1, "京": 1}
    assert [(entry.count, entry.bytes) for entry in left_out.values()] == [(1, 202)], "as they stand"
    assert choose_alphabet({"aab": 1, "c": 1}, 2) == ["a", "b"]


@pytest.mark.parametrize(
    ("word", "characters"),
    [("x" * 101, 101), ("é" * 101, 101), ("한국어" * 20, 160), ("ที่น" * 51, 102), ("ẞ" * 101, 101)],
    ids=["ASCII", "accents", "Korean", "Thai", "sharp s"],
)
def test_words_that_are_too_long_are_measured_as_they_stand(word: str, characters: int) -> None:
    """How long they are, BERT's normaliser decides."""
    found = long_words(f"(a-{word})“{word}”.", normalizer_for(lowercase=True))
    assert found == [(len(word.encode()), f"{word[:40]}... ({characters} characters)")] * 2
    assert not long_words("é" * 100, normalizer_for(lowercase=True))


def test_letters_leave_three_quarters_of_the_rows_to_words() -> None:
    """As those of a text that quotes Chinese, of which each letter is a word."""
    signs = "".join(chr(0x4E00 + number) for number in range(300))
    words = [f"{first}{second}tion" for first in "abcdefgh" for second in "rstuvwxyz"]
    pieces = train_vocabulary([" ".join([*signs * 20, *words * 10])], 320).pieces
    assert {"##tion", "artion", "hztion"} <= set(pieces)
