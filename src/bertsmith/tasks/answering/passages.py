"""A context as words between white space, as pieces, and as characters, and the way from one to another."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from bertsmith.tokens.tokenizer import Tokenizer

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

# Other white space, such as U+00A0, is part of a word.
_WORD = re.compile("[^ \t\r\n\u202f]+")
_AT_ONCE = 4096


@dataclass(frozen=True)
class Words:
    """The words of a text. begins, ends: int64[W], the first character of each, and the one after its last."""

    text: str
    begins: Ints
    ends: Ints

    @classmethod
    def of(cls, text: str) -> Self:
        places = np.array([match.span() for match in _WORD.finditer(text)], dtype=np.int64).reshape(-1, 2)
        return cls(text, places[:, 0], places[:, 1])

    def at(self, character: int) -> int:
        """The word that a character belongs to; for white space the one before it, -1 where there is none."""
        return int(np.searchsorted(self.begins, character, side="right")) - 1

    def joined(self, first: int, last: int) -> str:
        """The words from `first` to `last`, with single spaces between them."""
        some = slice(first, last + 1)
        return " ".join(self.text[begin:end] for begin, end in zip(self.begins[some], self.ends[some], strict=True))


@dataclass(frozen=True)
class Passage:
    """A context. kept: bool[W], whether the tokenizer leaves a word as many characters as it has. ids: int64[L].
    begins, ends: int64[L], the characters of the pieces. word: int64[L], that each belongs to. unknown: bool[L], the
    piece is [UNK]."""

    words: Words
    kept: Flags
    ids: Ints
    begins: Ints
    ends: Ints
    word: Ints
    unknown: Flags

    @property
    def text(self) -> str:
        return self.words.text

    def pieces_of(self, first_word: int, last_word: int) -> tuple[int, int]:
        """The first and the last piece of some words; the last is before the first where they have none."""
        first, after = np.searchsorted(self.word, (first_word, last_word + 1))
        return int(first), int(after) - 1

    def characters(self, first: Ints, last: Ints) -> tuple[Ints, Ints]:
        """The places in the text of the answers that the pieces from `first` to `last` give: (starts, ends), [N] each.

        Those that the pieces stand for; whole words where a piece is [UNK], or where the tokenizer changes how many
        characters a word has (marks that it strips, or Hangul that it takes apart). So does get_final_text of
        run_squad.py.
        """
        word, last_word = self.word[first], self.word[last]
        whole = _any_between(self.unknown, first, last) | _any_between(~self.kept, word, last_word)
        starts = np.where(whole, self.words.begins[word], self.begins[first])
        return starts, np.where(whole, self.words.ends[last_word], self.ends[last])


def _any_between(flags: Flags, first: Ints, last: Ints) -> Flags:
    """Whether any flag from `first` to `last` is set."""
    before = np.concatenate(([0], np.cumsum(flags)))
    return np.asarray(before[last + 1] > before[first])


def read_passages(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[Passage]:
    """The passages of texts, in their order."""
    for place in range(0, len(texts), _AT_ONCE):
        some = texts[place : place + _AT_ONCE]
        for text, (ids, offsets) in zip(some, tokenizer.encode_offsets(some), strict=True):
            words = Words.of(text)
            begins, ends = offsets[:, 0], offsets[:, 1]
            word = np.searchsorted(words.begins, begins, side="right") - 1
            yield Passage(words, _kept(tokenizer, words), ids, begins, ends, word, ids == tokenizer.special.unknown)


def _kept(tokenizer: Tokenizer, words: Words) -> Flags:
    if words.text.isascii() and words.text.replace("\n", "").isprintable():
        return np.ones(len(words.begins), dtype=bool)
    each = (words.text[begin:end] for begin, end in zip(words.begins, words.ends, strict=True))
    return np.array([_keeps(tokenizer, word) for word in each], dtype=bool)


def _keeps(tokenizer: Tokenizer, word: str) -> bool:
    if word.isascii() and word.isprintable():
        return True
    return len("".join(tokenizer.normalizer.normalize_str(word).split())) == len(word)
