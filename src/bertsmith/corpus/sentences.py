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
# sentencex 1.0 panics at an end of sentence before a space of several bytes, such as U+00A0. It is shown plain ones;
# the sentences keep their own.
_WIDE_SPACE = re.compile(r"[^\S\n\t ]")
_BLANK_LINE = re.compile(r"\n[^\S\n]*\n")


def sentences_of(text: str, line_breaks: LineBreaks, language: str, changed: Tally) -> list[str]:
    """The sentences, stripped, none empty, in order. language: an ISO 639 code that sentencex knows, or any other.

    Joined without white space they are the text without white space.
    """
    if line_breaks == "sentence":
        found = text.split("\n")
    else:
        paragraphs = text.split("\n") if line_breaks == "paragraph" else _BLANK_LINE.split(text)
        found = [part for paragraph in paragraphs for part in _segmented(paragraph, language, changed)]
    sentences = []
    for sentence in found:
        if len(sentence) > LONGEST_SENTENCE_CHARACTERS:
            pieces = list(chunks(sentence, LONGEST_SENTENCE_CHARACTERS))
            changed.note(
                f"sentences cut at {LONGEST_SENTENCE_CHARACTERS:,} characters", len(pieces) - 1, example=sentence[:60]
            )
        else:
            pieces = [sentence]
        sentences += [stripped for piece in pieces if (stripped := piece.strip())]
    return sentences


def _segmented(paragraph: str, language: str, changed: Tally) -> Iterator[str]:
    for chunk in chunks(paragraph, _LONGEST_PARAGRAPH):
        found = _segment(language, chunk if chunk.isascii() else _WIDE_SPACE.sub(" ", chunk))
        if sum(map(len, found)) == len(chunk):
            start = 0
            for sentence in found:
                yield chunk[start : start + len(sentence)]
                start += len(sentence)
        elif chunk.strip():
            what = "paragraphs that the segmenter would not give back whole, split at line ends"
            changed.note(what, example=chunk[:60])
            yield from chunk.split("\n")


def _segment(language: str, text: str) -> list[str]:
    """Its sentences, or nothing where the segmenter failed."""
    try:
        found: list[str] = segment(language, text)
    except BaseException as error:
        # A fault of the segmenter comes as pyo3's PanicException, which is no Exception; one page must not end a run.
        if type(error).__name__ != "PanicException":
            raise
        return []
    return found if "".join(found) == text else []


def chunks(text: str, most: int) -> Iterator[str]:
    """The text in pieces of at most `most` characters, cut at the last white space where there is one."""
    start = 0
    while len(text) - start > most:
        window = text[start : start + most]
        end = max(window.rfind(" "), window.rfind("\n")) + 1 or most
        yield text[start : start + end]
        start += end
    yield text[start:]
