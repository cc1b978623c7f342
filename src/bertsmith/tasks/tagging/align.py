"""Word pieces aligned to words: those that the rows give, or those that BERT's pre-tokenizer finds in a text.

A word is labelled at its first piece (Devlin et al., 2019, section 5.3). Legend: W words, P pieces.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith.tasks.scoring.entities import Span
from bertsmith.tokens.tokenizer import Tokenizer

Ints = NDArray[np.int64]
NO_PIECE = -1


@dataclass(frozen=True)
class Words:
    """The words of a text and its pieces.

    offsets: int64[W, 2], the characters of each word, ascending, without overlaps. first: int64[W], the first piece of
    each, or NO_PIECE for one that the normaliser leaves nothing of, such as a lone U+200B. pieces: int64[P].
    """

    offsets: Ints
    first: Ints
    pieces: Ints


def align_words(sentences: Sequence[tuple[Sequence[str], Ints]], tokenizer: Tokenizer) -> list[Words]:
    """Sentences of words with the characters of each: every word's pieces are those of the word by itself."""
    ids = iter(tokenizer.encode_ids([word for words, _ in sentences for word in words]))
    aligned = []
    for words, offsets in sentences:
        parts = [next(ids) for _ in words]
        counts = np.array([len(part) for part in parts], dtype=np.int64)
        first = np.where(counts > 0, np.cumsum(counts) - counts, NO_PIECE)
        aligned.append(Words(offsets, first, np.concatenate(parts).astype(np.int64)))
    return aligned


def align_text(text: str, tokenizer: Tokenizer) -> Words:
    """A text as BERT's pre-tokenizer splits it: at white space, and every punctuation mark is a word of its own."""
    ((pieces, offsets),) = tokenizer.encode_offsets([text])
    first = np.flatnonzero(~tokenizer.is_continuation[pieces])
    last = np.append(first[1:], len(pieces))[: len(first)] - 1
    starts = offsets[first, 0].tolist()
    limits = [*starts[1:], len(text)][: len(starts)]
    ends = [_with_marks(text, *each) for each in zip(offsets[last, 1].tolist(), limits, strict=True)]
    return Words(np.array([starts, ends], dtype=np.int64).T, first, pieces)


def _with_marks(text: str, end: int, limit: int) -> int:
    """The end of a word with the accents behind it, which the normaliser may have taken off."""
    while end < limit and unicodedata.category(text[end]) == "Mn":
        end += 1
    return end


def in_characters(spans: Iterable[Span], offsets: Ints) -> list[Span]:
    """Spans of words as spans of characters."""
    return [Span(int(offsets[start, 0]), int(offsets[end - 1, 1]), label) for start, end, label in spans]


def on_words(spans: Iterable[Span], offsets: Ints) -> tuple[list[Span], list[Span]]:
    """Spans of characters as spans of words, and those of them that begin or end inside a word, as they are.

    White space and other characters of no word at the ends of a span do not count.
    """
    starts, ends = offsets[:, 0], offsets[:, 1]
    whole, broken = [], []
    for span in spans:
        first = int(np.searchsorted(starts, span.start))
        end = int(np.searchsorted(ends, span.end, side="right"))
        inside = (first > 0 and ends[first - 1] > span.start) or (end < len(starts) and starts[end] < span.end)
        if inside or first >= end:
            broken.append(span)
        else:
            whole.append(Span(first, end, span.label))
    return whole, broken


def widened(spans: Iterable[Span], offsets: Ints) -> list[Span]:
    """Spans of characters, none of which overlap, as spans of all words that they touch; one that touches a word of an
    earlier one is cut."""
    found: list[Span] = []
    taken = 0
    for span in sorted(spans):
        first = max(taken, int(np.searchsorted(offsets[:, 1], span.start, side="right")))
        taken = int(np.searchsorted(offsets[:, 0], span.end))
        if first < taken:
            found.append(Span(first, taken, span.label))
    return found
