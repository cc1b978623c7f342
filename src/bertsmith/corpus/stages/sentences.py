"""Sentences of a text, by sentencex. Nothing but white space between sentences is ever lost."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sentencex import segment

from bertsmith.base.tally import Tally
from bertsmith.corpus.documents import LineBreaks

# Longer stretches without an end of sentence are tables, data or one long line; they are cut at a space.
LONGEST_SENTENCE_CHARACTERS = 10_000
# What sentencex 1.0 is shown at once. A call costs as much as 100 characters, so short paragraphs go together. Each of
# 30,000 characters takes three times as long, and fewer ends are found: between two quotes it looks for none.
_WINDOW = 2_000
# An end is accepted with this much text after it: what follows may show that it was an abbreviation.
_CONTEXT = 50
# English rules see one end behind these abbreviations, since "Yes" begins a sentence; all others see none, or both.
_ENGLISH_ALONE = "Sr. Yes. Mme. Oui."
_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")


def sentences_of(text: str, line_breaks: LineBreaks, language: str, changed: Tally) -> list[str]:
    """The sentences of a cleaned text, stripped, none empty, in order.

    Joined without white space they are the text without white space. language: an ISO 639 code; one that `has_rules`
    is not true of is split as English is.
    """
    if line_breaks == "sentence":
        found = text.split("\n")
    else:
        text = text.replace("\n", "\n\n") if line_breaks == "paragraph" else _BLANK_LINES.sub("\n\n", text)
        found = [sentence for passage in _passages(text) for sentence in _segmented(passage, language, changed)]
    if found and max(map(len, found)) > LONGEST_SENTENCE_CHARACTERS:
        found = _cut(found, changed)
    return [sentence for sentence in map(str.strip, found) if sentence]


def has_rules(language: str) -> bool:
    """Whether sentencex has rules for a language, or for one that it takes in its place.

    It names none, and splits all others as English, so an English text that others split otherwise tells.
    """
    return language == "en" or _segment(language, _ENGLISH_ALONE) != _segment("en", _ENGLISH_ALONE)


def _cut(sentences: list[str], changed: Tally) -> list[str]:
    """The sentences with those that are too long in pieces."""
    out = []
    for sentence in sentences:
        pieces = list(chunks(sentence, LONGEST_SENTENCE_CHARACTERS))
        _note_cuts(len(pieces) - 1, sentence, changed)
        out += pieces
    return out


def _note_cuts(count: int, sentence: str, changed: Tally) -> None:
    if count:
        what = f"sentences cut at {LONGEST_SENTENCE_CHARACTERS:,} characters"
        changed.note(what, count, example=sentence.strip()[:60])


def _passages(text: str) -> Iterator[str]:
    """Whole paragraphs, as many as fit into a window; a longer one by itself."""
    start = 0
    while len(text) - start > _WINDOW:
        end = text.rfind("\n\n", start, start + _WINDOW)
        if end <= start:
            end = text.find("\n\n", start + _WINDOW)
            end = len(text) if end < 0 else end
        yield text[start : end + 2]
        start = end + 2
    yield text[start:]


def _segmented(passage: str, language: str, changed: Tally) -> list[str]:
    """The sentences of a passage, with the white space between them, found a window at a time.

    What a window ends with may go on behind it, so the next window begins with that; a window in which nothing ends is
    made longer.
    """
    found, start, window = list[str](), 0, _WINDOW
    while start < len(passage):
        piece = passage[start : start + window]
        sentences = _sentences_or_lines(piece, language, changed)
        if start + window < len(passage):
            behind = 0
            while sentences and behind < _CONTEXT:
                behind += len(sentences.pop())
            if not sentences and window <= LONGEST_SENTENCE_CHARACTERS:
                window = min(2 * window, LONGEST_SENTENCE_CHARACTERS + 1)
                continue
            if not sentences:
                sentences = [next(chunks(piece, LONGEST_SENTENCE_CHARACTERS))]
                _note_cuts(1, piece, changed)
        found += sentences
        start += sum(map(len, sentences))
        window = _WINDOW
    return found


def _sentences_or_lines(text: str, language: str, changed: Tally) -> list[str]:
    found = _segment(language, text)
    if found is None:
        changed.note("passages that the segmenter would not give back whole, split at line ends", example=text[:60])
        return text.splitlines(keepends=True)
    return found


def _segment(language: str, text: str) -> list[str] | None:
    """Its sentences, which joined are the text, or None where the segmenter failed."""
    try:
        found: list[str] = segment(language, text)
    except BaseException as error:
        # A fault of the segmenter comes as pyo3's PanicException, which is no Exception; one page must not end a run.
        # Version 1.0 has one at an end of sentence before a space of several bytes, which cleaning makes plain.
        if type(error).__name__ != "PanicException":
            raise
        return None
    return found if "".join(found) == text else None


def chunks(text: str, most: int) -> Iterator[str]:
    """The text in pieces of at most `most` characters, cut at the last white space where there is one."""
    start = 0
    while len(text) - start > most:
        window = text[start : start + most]
        end = max(window.rfind(" "), window.rfind("\n")) + 1 or most
        yield text[start : start + end]
        start += end
    yield text[start:]
