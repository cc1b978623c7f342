"""Where the answers of training questions stand in their contexts, in pieces."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from bertsmith.tasks.answering.passages import Ints, Passage

ELSEWHERE = "the context has other words where the answer should start"
MISSING = "the answer is not in the context"
NO_PIECES = "the words of the answer have no tokens"


@dataclass(frozen=True)
class Gold:
    """An answer. start: its first character in the context; None where the row does not say."""

    text: str
    start: int | None = None


@dataclass(frozen=True)
class Place:
    """Where an answer stands, or why it cannot be used (`fault`).

    first, last: its pieces. searched: it was looked for, and stands at so many places, the first of which was taken.
    """

    first: int = -1
    last: int = -1
    searched: int = 0
    fault: str = ""


def place_of(passage: Passage, answer: Gold, answer_ids: Ints) -> Place:
    """The pieces of an answer. answer_ids: its own pieces.

    Its words are those that its characters fall in, and must contain it (white space apart). Within them the exact
    pieces are looked for: of `(1895-1943)` the answer `1895`. Where they do not occur the words are taken whole, as
    `Japan` is for `Japanese`.
    """
    start, searched = answer.start, 0
    if start is None or start < 0:
        starts = occurrences(passage.text, answer.text)
        if not starts:
            return Place(fault=MISSING)
        start, searched = starts[0], len(starts)
    first_word, last_word = passage.word_at(start), passage.word_at(start + len(answer.text) - 1)
    wanted = " ".join(answer.text.split())
    inside = start + len(answer.text) <= len(passage.text)
    if first_word < 0 or not inside or wanted not in passage.joined(first_word, last_word):
        return Place(fault=ELSEWHERE)
    first, last = passage.pieces_of(first_word, last_word)
    if last < first:
        return Place(fault=NO_PIECES)
    return Place(*_narrowed(passage.ids, first, last, answer_ids), searched)


def _narrowed(ids: Ints, first: int, last: int, answer_ids: Ints) -> tuple[int, int]:
    """The first place within [first, last] that has the very pieces of the answer, else all of it."""
    count = len(answer_ids)
    for begin in range(first, last - count + 2) if count else ():
        if np.array_equal(ids[begin : begin + count], answer_ids):
            return begin, begin + count - 1
    return first, last


def occurrences(context: str, answer: str) -> list[int]:
    """The first characters of an answer's occurrences: those that are no part of a longer word, else all."""
    exact = re.escape(answer)
    for pattern in (rf"(?<!\w){exact}(?!\w)", exact):
        if found := [match.start() for match in re.finditer(pattern, context)]:
            return found
    return []
