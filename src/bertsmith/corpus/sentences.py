"""Sentences of a text, by sentencex. Nothing but white space between sentences is ever lost."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sentencex import segment

from bertsmith.corpus.account import Tally
from bertsmith.corpus.documents import LineBreaks

# Longer stretches without an end of sentence are tables, data or one long line; they are cut at a space.
LONGEST_SENTENCE_CHARACTERS = 10_000
# What is segmented at once: a longer paragraph is first cut, so that no text makes the segmenter slow.
_LONGEST_PARAGRAPH = 200_000
# Paragraphs are shown to sentencex some at once, since a call costs as much as 100 characters. Past 10,000 characters
# sentencex 1.0 cuts what it is given into pieces of its own and loses the blank lines between them.
_PASSAGE = 8_000
_BLANK_LINES = re.compile(r"\n(?:[^\S\n]*\n)+")


def sentences_of(text: str, line_breaks: LineBreaks, language: str, changed: Tally) -> list[str]:
    """The sentences of a cleaned text, stripped, none empty, in order.

    Joined without white space they are the text without white space. language: an ISO 639 code that sentencex knows, or
    any other.
    """
    if line_breaks == "sentence":
        found = text.split("\n")
    else:
        text = text.replace("\n", "\n\n") if line_breaks == "paragraph" else _BLANK_LINES.sub("\n\n", text)
        found = []
        for passage in _passages(text):
            found += _segmented(passage, language, changed)
    if found and max(map(len, found)) > LONGEST_SENTENCE_CHARACTERS:
        found = _cut(found, changed)
    return [sentence for sentence in map(str.strip, found) if sentence]


def _cut(sentences: list[str], changed: Tally) -> list[str]:
    """The sentences with those that are too long in pieces."""
    out = []
    for sentence in sentences:
        pieces = list(chunks(sentence, LONGEST_SENTENCE_CHARACTERS))
        if len(pieces) > 1:
            what = f"sentences cut at {LONGEST_SENTENCE_CHARACTERS:,} characters"
            changed.note(what, len(pieces) - 1, example=sentence.strip()[:60])
        out += pieces
    return out


def _passages(text: str) -> Iterator[str]:
    """Whole paragraphs, as many as fit into a passage; a longer one by itself, in pieces where it is too long."""
    start = 0
    while len(text) - start > _PASSAGE:
        end = text.rfind("\n\n", start, start + _PASSAGE)
        if end <= start:
            end = text.find("\n\n", start + _PASSAGE)
            end = len(text) if end < 0 else end
        yield from chunks(text[start : end + 2], _LONGEST_PARAGRAPH)
        start = end + 2
    yield text[start:]


def _segmented(passage: str, language: str, changed: Tally) -> list[str]:
    """The sentences of a passage, with the white space between them."""
    found = _segment(language, passage)
    return _in_paragraphs(passage, language, changed) if found is None else found


def _in_paragraphs(passage: str, language: str, changed: Tally) -> list[str]:
    """The sentences of a passage that the segmenter failed at: those of each paragraph, or its lines."""
    paragraphs = passage.split("\n\n")
    if len(paragraphs) > 1:
        return [sentence for each in paragraphs for sentence in _segmented(each, language, changed)]
    if passage.strip():
        what = "paragraphs that the segmenter would not give back whole, split at line ends"
        changed.note(what, example=passage[:60])
    return passage.split("\n")


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
