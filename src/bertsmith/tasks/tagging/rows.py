"""Rows of tagged words and of texts with marked spans as records; a ValueError says what is wrong with a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unicodedata import normalize

import numpy as np

from bertsmith.base.log import counted
from bertsmith.tasks.reading.cells import START_END, LacksColumn, listed_in, plain
from bertsmith.tasks.reading.labels import MOST_DIGITS
from bertsmith.tasks.reading.records import Columns, Record, Row, check_characters, id_of, row_of, text_of
from bertsmith.tasks.scoring.entities import Span
from bertsmith.tasks.tagging.align import Ints, in_characters
from bertsmith.tasks.tagging.schemes import first_overlap, spans_of, split_tag

ENTITIES = "entities"
"""The column of spans where rows have none of the usual name; answers call them so."""
_SHOWN = 40


@dataclass(frozen=True)
class TaggedRecord(Record):
    """A text with the entities in it. label: tuple[Span], in characters; None where none is wanted.

    words: those of a row that gives words; the text is them with a space between each two. tags: of these words, as the
    row has them.
    """

    words: tuple[str, ...] | None = None
    tags: tuple[str, ...] | None = None


def tagged_record(row: Row | str, columns: Columns, labelled: bool, where: str) -> TaggedRecord:
    """A row of words (with their tags), or of a text (with its spans); where it has both, of words if these have tags.

    A bare string is a text. ValueError says what is wrong with the row.
    """
    row = row_of(row, columns.text)
    if columns.tokens in row and (columns.tags in row or columns.text not in row):
        words = words_of(row[columns.tokens], columns.tokens)
        tags = tuple(_tags(row, columns, words)) if labelled else None
        label = None if tags is None else tuple(in_characters(spans_of(tags), word_offsets(words)))
        text = " ".join(words)
        check_characters(text + " ".join(tags or ()), columns.tokens)
        return TaggedRecord(text, None, label, where, id_of(row, columns), words=tuple(words), tags=tags)
    if columns.text not in row:
        what = f"no column '{columns.tokens}' of words and no column '{columns.text}'"
        raise LacksColumn(what, row, "tokens", "text")
    text = text_of(row, columns.text)
    marked = None
    if labelled:
        usual = columns.spans == Columns.spans and columns.spans not in row and ENTITIES in row
        column = ENTITIES if usual else columns.spans
        marked = tuple(marked_spans(_cell(row, column, "spans"), text, column))
    return TaggedRecord(text, None, marked, where, id_of(row, columns))


def _tags(row: Row, columns: Columns, words: Sequence[str]) -> list[str]:
    names = None if columns.tag_names is None else [each.strip() for each in columns.tag_names.split(",")]
    return tags_of_words(_cell(row, columns.tags, "tags"), words, columns.tags, names)


def _cell(row: Row, column: str, field: str) -> Any:
    if column not in row:
        raise LacksColumn(f"no column '{column}'", row, field)
    return row[column]


def words_of(value: Any, column: str) -> list[str]:
    """The words of a row: a list of them, or a cell of a table with that as JSON, or with white space between them."""
    words = _parts(listed_in(value, column, str), column, "words")
    for word in words:
        if not isinstance(word, str):
            raise ValueError(f"column '{column}' has {_shown(word)} among the words, which is not a text")
    return words


def tags_of_words(value: Any, words: Sequence[str], column: str, names: Sequence[str] | None = None) -> list[str]:
    """A tag for each of the words, as `schemes` reads them; in a row as words are, or as places in the names of all
    tags. names: where they are given, there are no others."""
    tags = [_named(tag, column, names) for tag in _parts(listed_in(value, column, str, int), column, "tags")]
    if len(tags) != len(words):
        raise ValueError(f"column '{column}' has {counted(len(tags), 'tag')} for {counted(len(words), 'word')}")
    for place, (tag, word) in enumerate(zip(tags, words, strict=True), start=1):
        try:
            split_tag(tag)
        except ValueError as error:
            raise ValueError(f"word {place}, {_shown(word)}: {error}") from error
    return tags


def _named(tag: Any, column: str, names: Sequence[str] | None) -> str:
    """A tag, by its name where it is a whole number."""
    text = str(tag) if type(tag) is int else tag
    if not isinstance(text, str):
        raise ValueError(f"column '{column}' has {_shown(tag)} among the tags, which is not a text")
    if text.isdecimal():
        if names is None:
            fix = "give the names of all numbers, from 0, as --labels O,B-PER,I-PER"
            raise ValueError(f"column '{column}' has numbers as tags, such as {text}; {fix}")
        if len(text) > MOST_DIGITS or int(text) >= len(names):
            raise ValueError(f"the tag {_shown(text)} has no name: there are {len(names)}, from 0")
        return names[int(text)]
    if names is not None and text not in names:
        raise ValueError(f"the tag {_shown(text)} is not one of {', '.join(names)}")
    return text


def _parts(value: Any, column: str, what: str) -> list[Any]:
    parts = value.split() if isinstance(value, str) else plain(value)
    if not isinstance(parts, list | tuple):
        raise ValueError(f"column '{column}' holds {_shown(value)}, and not a list of {what}")
    if not parts:
        raise ValueError(f"column '{column}' is empty")
    return list(parts)


def word_offsets(words: Sequence[str]) -> Ints:
    """The characters of each word where they stand in one text, a space between each two: int64[W, 2]."""
    ends = np.cumsum([len(word) + 1 for word in words], dtype=np.int64) - 1
    return np.stack([ends - [len(word) for word in words], ends], axis=1)


def marked_spans(value: Any, text: str, column: str) -> list[Span]:
    """The spans of a text in characters: [{"start", "end", "label"}], or [start, end, label] each, or JSON of it; none
    of an empty cell. They may be as Label Studio, doccano and Argilla write them, too.

    None may be empty, or begin before or end behind the text, and no two may overlap. A "text" that a span has is what
    it marks, whatever its white space and capitals: other offsets than those in characters, as of bytes, mark others.
    """
    listed = listed_in(plain(value), column)
    listed = [] if isinstance(listed, str) and not listed else listed
    if not isinstance(listed, list | tuple):
        raise ValueError(f"column '{column}' holds {_shown(value)}, and not a list of spans, or JSON of one")
    spans = [_span(each, text, column) for each in listed]
    if both := first_overlap(spans):
        first, second = (f"{text[span.start : span.end]!r} ({span.start} to {span.end})" for span in both)
        raise ValueError(f"two spans overlap: {first} and {second}; a word has one tag")
    return sorted(spans)


def _span(value: Any, text: str, column: str) -> Span:
    parts = _start_end_label(value)
    if len(parts) != 3:
        raise ValueError(f'column \'{column}\' has {_shown(value)}; a span is {{"start": 0, "end": 5, "label": ...}}')
    start, end, label = parts
    if type(start) is not int or type(end) is not int or not isinstance(label, str) or not label.strip():
        raise ValueError(f"the span {_shown(value)} needs two whole numbers and the name of a type")
    check_characters(label, column)
    if not 0 <= start < end <= len(text):
        raise ValueError(f"the span from {start} to {end} does not lie in the text, which has {len(text)} characters")
    if not text[start:end].strip():
        raise ValueError(f"the span from {start} to {end} holds white space alone")
    said = value.get("text") if isinstance(value, dict) else None
    if isinstance(said, str) and _words(said) not in ([], _words(text[start:end])):
        marked = f"the span from {start} to {end} is {_shown(text[start:end])}, and its 'text' is {_shown(said)}"
        raise ValueError(f"{marked}; count characters from 0, or leave out 'text'")
    return Span(start, end, label.strip())


def _start_end_label(value: Any) -> Sequence[Any]:
    """The three parts of a span; fewer or more where it is none."""
    if isinstance(value, list | tuple):
        return (*value[1:], value[0]) if value and isinstance(value[0], str) else value
    if not isinstance(value, dict):
        return ()
    places = next(([value[name] for name in names] for names in START_END if value.keys() >= set(names)), [])
    labels = [value["label"]] if "label" in value else value.get("labels")
    return [*places, *labels] if isinstance(labels, list) else ()


def _words(text: str) -> list[str]:
    return normalize("NFKC", text).casefold().split()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 4] + " ..."
