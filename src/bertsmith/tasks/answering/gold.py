"""Where the answers of questions are in their contexts, in characters and in pieces."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from bertsmith.tasks.answering.passages import Ints, Passage, Words

ELSEWHERE = "the context has other words where the answer should start"
MISSING = "the answer is not in the context"


@dataclass(frozen=True)
class Gold:
    """An answer. start: its first character in the context; None or below 0 where that is not known."""

    text: str
    start: int | None = None

    @property
    def end(self) -> int:
        """The character after its last one."""
        return (self.start or 0) + len(self.text)


def located(context: str, gold: Gold) -> tuple[Gold, int]:
    """The answer with its start, and at how many places it was found; 0 where it had a start, or is nowhere."""
    if gold.start is not None and gold.start >= 0:
        return gold, 0
    found = occurrences(context, gold.text)
    return (replace(gold, start=found[0]), len(found)) if found else (gold, 0)


def occurrences(context: str, answer: str) -> list[int]:
    """The first characters of an answer's occurrences: those that are no part of a longer word, else all."""
    exact = re.escape(answer)
    for pattern in (rf"(?<!\w){exact}(?!\w)", exact):
        if found := [match.start() for match in re.finditer(pattern, context)]:
            return found
    return []


def fault_of(words: Words, gold: Gold) -> str:
    """Why an answer with this start cannot be learned; "" where it can.

    The words that its characters fall in must contain it, white space apart.
    """
    if gold.start is None or gold.start < 0:
        return MISSING
    first, last = words.at(gold.start), words.at(gold.end - 1)
    inside = first >= 0 and gold.end <= len(words.text)
    return "" if inside and " ".join(gold.text.split()) in words.joined(first, last) else ELSEWHERE


def pieces_of(passage: Passage, gold: Gold, answer_ids: Ints) -> tuple[int, int] | None:
    """The first and last piece of an answer that `fault_of` finds nothing wrong with; None where it has no piece.

    answer_ids: the pieces of the answer alone. Where they occur within its words, that is the place: `1895` in
    `(1895-1943)`. Else its words are taken whole, as `Japanese` is for `Japan` where that is no piece of it.
    """
    assert gold.start is not None
    words = passage.words
    first, last = passage.pieces_of(words.at(gold.start), words.at(gold.end - 1))
    count = len(answer_ids)
    for begin in range(first, last - count + 2) if count else ():
        if np.array_equal(passage.ids[begin : begin + count], answer_ids):
            return begin, begin + count - 1
    return (first, last) if first <= last else None
