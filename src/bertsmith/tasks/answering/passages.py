"""A context as words between white space, as pieces, and as characters, and the way from one to another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith.tokens.tokenizer import Tokenizer

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Other white space, such as U+00A0, is part of a word.
_WORD = re.compile("[^ \t\r\n\u202f]+")
_AT_ONCE = 4096


@dataclass(frozen=True)
class Passage:
    """A context. Places are characters of `text`, the end being the one after the last.

    word_begins, word_ends: int64[W]. kept: bool[W], whether the tokenizer leaves the word as many characters as it has.
    ids: int64[L]. begins, ends: int64[L], of the pieces. words: int64[L], the word that a piece belongs to. unknown:
    bool[L], the piece is [UNK].
    """

    text: str
    word_begins: Ints
    word_ends: Ints
    kept: Flags
    ids: Ints
    begins: Ints
    ends: Ints
    words: Ints
    unknown: Flags

    def word_at(self, character: int) -> int:
        """The word that a character belongs to; for white space the one before it, -1 where there is none."""
        return int(np.searchsorted(self.word_begins, character, side="right")) - 1

    def pieces_of(self, first_word: int, last_word: int) -> tuple[int, int]:
        """The first and the last piece of some words; the last is before the first where they have none."""
        first, after = np.searchsorted(self.words, (first_word, last_word + 1))
        return int(first), int(after) - 1

    def joined(self, first_word: int, last_word: int) -> str:
        """Some words, with single spaces between them."""
        some = slice(first_word, last_word + 1)
        places = zip(self.word_begins[some], self.word_ends[some], strict=True)
        return " ".join(self.text[begin:end] for begin, end in places)

    def characters(self, first: int, last: int) -> tuple[int, int]:
        """The place in the text of the answer that the pieces from `first` to `last` give.

        Those that the pieces stand for; whole words where a piece is [UNK], or where the tokenizer changes how many
        characters a word has (marks that it strips, or Hangul that it takes apart). So does get_final_text of
        run_squad.py.
        """
        word, last_word = int(self.words[first]), int(self.words[last])
        if self.unknown[first : last + 1].any() or not self.kept[word : last_word + 1].all():
            return int(self.word_begins[word]), int(self.word_ends[last_word])
        return int(self.begins[first]), int(self.ends[last])


def read_passages(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[Passage]:
    """The passages of texts, in their order."""
    for place in range(0, len(texts), _AT_ONCE):
        some = texts[place : place + _AT_ONCE]
        for text, (ids, offsets) in zip(some, tokenizer.encode_offsets(some), strict=True):
            yield _passage(tokenizer, text, ids, offsets)


def _passage(tokenizer: Tokenizer, text: str, ids: Ints, offsets: Ints) -> Passage:
    places = np.array([match.span() for match in _WORD.finditer(text)], dtype=np.int64).reshape(-1, 2)
    word_begins, word_ends = places[:, 0], places[:, 1]
    begins, ends = offsets[:, 0], offsets[:, 1]
    kept = np.ones(len(places), dtype=bool)
    if not (text.isascii() and text.replace("\n", "").isprintable()):
        kept[:] = [_is_kept(tokenizer, text[begin:end]) for begin, end in places]
    words = np.searchsorted(word_begins, begins, side="right") - 1
    return Passage(text, word_begins, word_ends, kept, ids, begins, ends, words, ids == tokenizer.special.unknown)


def _is_kept(tokenizer: Tokenizer, word: str) -> bool:
    if word.isascii() and word.isprintable():
        return True
    return len("".join(tokenizer.normalizer.normalize_str(word).split())) == len(word)
