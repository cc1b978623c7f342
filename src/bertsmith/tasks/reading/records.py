"""Rows of csv, tsv, jsonl and parquet files, or of Python, as records; a bad row is named by its file and line."""

from __future__ import annotations

import itertools
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.files import read_errors
from bertsmith.base.log import log_choice
from bertsmith.rows.compressed import codec_of, peek
from bertsmith.rows.encodings import UTF8_MARK, encoding_of
from bertsmith.rows.json_lines import NO_OBJECT, NOT_JSON, json_rows
from bertsmith.rows.lines import Lines, Slice, open_text, raise_fault, split_at_returns
from bertsmith.rows.parquet import parquet_rows
from bertsmith.rows.row import Row as FileRow
from bertsmith.rows.tables import OPEN_QUOTE, QUOTE, cells_of, table_rows
from bertsmith.tasks.reading.labels import label_text

Cells = TypeVar("Cells")

KINDS = ("csv", "tsv", "jsonl", "parquet")
# Of csv files; the first where their beginning does not tell.
_SEPARATORS = ",;\t|"
_HEAD = 1 << 16
# The message for a fault, and what to do about it.
_FAULTS = {
    NOT_JSON: ("this line is not JSON", "write an object a line"),
    NO_OBJECT: ("this line is not a JSON object", 'write {"text": ..., "label": ...}'),
    OPEN_QUOTE: ("this row cannot be read: its quote is never closed", "close the quote, or double it inside a field"),
}
_SHOWN = 5
_SURROGATE = re.compile("[\ud800-\udfff]")

Row = Mapping[str, Any]
Source = str | Path | Sequence[Row | str]


@dataclass(frozen=True)
class Columns:
    """Where a record's parts stand in a row."""

    text: str = "text"
    """The column of the text, or of the first of two; of multiple choice, of what all choices continue."""
    text_b: str = "text_b"
    """The column of the second text; single texts where the rows have no 'text_b', an error where they lack another."""
    label: str = "label"
    """The column of the label, or of a list of labels."""
    label_separator: str = ""
    """What separates the labels of a row that has several in one cell, such as ";" (classify)."""
    question: str = "question"
    """The column of the question (qa)."""
    context: str = "context"
    """The column of the text that answers it (qa)."""
    answers: str = "answers"
    """The column of the answers (qa)."""
    id: str = "id"
    """The column that names a row, if there is one."""
    tokens: str = "tokens"
    """The column of the words (tag)."""
    tags: str = "tags"
    """The column of the words' tags (tag)."""
    spans: str = "spans"
    """The column of the marked spans of a text, by its characters (tag)."""
    choices: str = "choices"
    """The column that lists the choices, or several such columns joined by commas (choice)."""
    negative: str = "negative"
    """The column of a text that is unlike the first one (embed)."""
    group: str = "group"
    """The column of what may not be on both sides of a split into training and dev rows, if there is one."""
    header: bool = True
    """Whether the first line of a csv or tsv file names its columns; if not they are named 1, 2, 3 and so on."""
    quoted: bool | None = None
    """Whether fields may be quoted. By default those of csv are and those of tsv are not, as in GLUE's files."""

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """What `dataclasses.asdict` made of one, read back from JSON. ValueError says what is wrong with it."""
        if not isinstance(values, dict):
            raise ValueError(f"columns is {values!r}, not an object")
        kinds = {each.name: type(each.default) for each in fields(cls)}
        for name, value in values.items():
            if name not in kinds:
                raise ValueError(f"there is no '{name}' among the columns; {nearest(name, kinds)}")
            if type(value) is not kinds[name] and not (name == "quoted" and isinstance(value, bool)):
                raise ValueError(f"columns: {name} is {value!r}")
        return cls(**values)


@dataclass(frozen=True)
class Record:
    """A row as a task reads it: one or two texts and a label, of a type that the task decides, None where none is
    wanted. where: "file:line" or "row 3", for messages. id: the row's own name for itself. group: what the row shares
    with others that must stay on its side of a split."""

    text: str
    text_b: str | None
    label: Any
    where: str
    id: str | None = None
    group: str | None = None


class RowReader:
    """How a row becomes a record: here one or two texts and one label. Tasks with other rows have their own."""

    @classmethod
    def wanted(cls, columns: Columns, labelled: bool) -> dict[str, str]:
        """The columns that every row must have, by the field of `Columns` that names each."""
        wanted = {"text": columns.text}
        wanted |= {"text_b": columns.text_b} if columns.text_b != Columns.text_b else {}
        return wanted | ({"label": columns.label} if labelled else {})

    @classmethod
    def used(cls, columns: Columns) -> tuple[str, ...]:
        """All columns that records are made of, whether a row must have them or not."""
        return columns.text, columns.text_b, columns.label, columns.id, columns.group

    @classmethod
    def record(cls, row: Row | str, columns: Columns, labelled: bool, where: str) -> Record:
        """A row as a record; a bare string is a text. ValueError says what is wrong with it."""
        row = row_of(row, columns.text)
        label = label_of(row, columns.label) if labelled else None
        text = text_of(row, columns.text)
        second = text_of(row, columns.text_b) if _has_second(row, columns) else None
        return Record(text, second, label, where, id_of(row, columns))


def read_records(
    source: Source, columns: Columns | None = None, labelled: bool = True, reader: type[RowReader] = RowReader
) -> list[Record]:
    """All records of a file (csv, tsv, jsonl, parquet) or of a list of rows; every row counts, none is skipped.

    labelled: a label is wanted in every row; otherwise it is None. Raises BertsmithError that names the bad rows by
    file and line, a missing column together with those that were found, and an empty source.
    """
    columns = columns or Columns()
    bad: list[str] = []
    records: list[Record] = []
    for where, row in read_rows(source, columns, labelled, reader):
        try:
            records.append(reader.record(row, columns, labelled, where))
        except ValueError as error:
            bad.append(f"{where}: {error}")
    name = source if isinstance(source, str | Path) else "the rows"
    if bad:
        more = f"\n    and {len(bad) - _SHOWN:,} more" if len(bad) > _SHOWN else ""
        raise BertsmithError(
            f"{len(bad):,} of {len(bad) + len(records):,} rows cannot be used:\n    "
            + "\n    ".join(bad[:_SHOWN])
            + more,
            name,
            "correct or remove these rows; nothing was done",
        )
    if not records:
        raise BertsmithError("no rows found", name, "give a file with at least one row behind the header")
    return records


def row_of(row: Row | str, text: str) -> Row:
    """A row as a mapping; a bare string stands in the column `text`. ValueError for anything else."""
    if isinstance(row, str):
        return {text: row}
    if not isinstance(row, Mapping):
        raise ValueError(f"this row is of type {type(row).__name__}; give a text, or a mapping with its columns")
    return row


def label_of(row: Row, column: str) -> str:
    """The label of a row. ValueError where it has none."""
    value = row.get(column)
    label = "" if value is None else label_text(value)
    if not label:
        raise ValueError(f"no label in column '{column}'")
    _check_characters(label, column)
    return label


def id_of(row: Row, columns: Columns) -> str | None:
    """The name of a row, None where it has none."""
    value = row.get(columns.id)
    return None if value is None or value == "" else str(value)


def _has_second(row: Row, columns: Columns) -> bool:
    """Whether a row has a second text. An empty `text_b` is none, unless the user named the column."""
    named = columns.text_b != Columns.text_b
    return columns.text_b in row and (named or row[columns.text_b] not in (None, ""))


def text_of(row: Row, column: str) -> str:
    """The text in a column. ValueError where there is none, or an empty one."""
    text = row.get(column)
    if not isinstance(text, str):
        raise ValueError(f"column '{column}' holds no text" if column in row else f"no column '{column}'")
    if not text.strip():
        raise ValueError(f"column '{column}' is empty")
    _check_characters(text, column)
    return text


def _check_characters(text: str, column: str) -> None:
    if has_lone_surrogate(text):
        raise ValueError(f"column '{column}' holds half of a surrogate pair, which is not a character")


def read_rows(
    source: Source, columns: Columns, labelled: bool = False, reader: type[RowReader] = RowReader
) -> Iterator[tuple[str, Row | str]]:
    """(where, row) for every row. "-" is standard input: jsonl where it begins with a brace, else csv.

    labelled: rows to learn from, so that the label's column is wanted too. Raises BertsmithError for a file that is
    missing, damaged, may not be read or is not UTF-8, for a line that is not a row of its kind, and for a row without a
    column that is wanted.
    """
    wanted = reader.wanted(columns, labelled)
    for where, row in _rows(source, columns):
        if isinstance(row, Mapping) and not row.keys() >= set(wanted.values()):
            field, name = next((field, name) for field, name in wanted.items() if name not in row)
            flag = f"--columns.{field.replace('_', '-')}"
            fix = f"found: {', '.join(row) or 'none'}; name one with {flag}, in Python Columns({field}=...)"
            raise BertsmithError(f"there is no column '{name}'", where, fix)
        yield where, row


def unused_columns(source: Source, columns: Columns, reader: type[RowReader] = RowReader) -> list[str]:
    """The columns of the first row that no record is made of."""
    _, row = next(read_rows(source, columns, reader=reader), ("", ""))
    return [] if isinstance(row, str) else [each for each in row if each not in reader.used(columns)]


def _rows(source: Source, columns: Columns) -> Iterator[tuple[str, Row | str]]:
    if not isinstance(source, str | Path):
        yield from ((f"row {number}", row) for number, row in enumerate(source, start=1))
    elif str(source) == "-":
        yield from _standard_input(columns)
    else:
        yield from _file_rows(Path(source), columns)


def _file_rows(path: Path, columns: Columns) -> Iterator[tuple[str, Row]]:
    codec, name = codec_of(path), str(path)
    inner = Path(path.name.removesuffix(f".{codec}") if codec else path.name)
    kind = inner.suffix.lstrip(".").lower()
    if kind not in KINDS or (codec and kind == "parquet"):
        what = f"'{path.suffix}' is not a kind of file that is read here"
        raise BertsmithError(what, path, f"use {', '.join(KINDS)}; all but parquet may be compressed")
    if kind == "parquet":
        yield from ((f"{name}, row {number}", row) for number, row in parquet_rows(name))
        return
    part = Slice(name, name, kind, codec, encoding=encoding_of(peek(path, codec, 4)))
    with closing(open_text(name, codec, part.encoding)) as file:
        head = file.read(_HEAD).removeprefix(UTF8_MARK)
    yield from _parse(Lines(part, None, raise_fault, cut=False), kind, name, columns, head)


def _standard_input(columns: Columns) -> Iterator[tuple[str, Row]]:
    """Rows as they come: the first line alone tells what they are."""
    if sys.stdin is None:
        raise BertsmithError("standard input is closed", "-", "pipe rows into the command, or name a file")
    name = "standard input"
    with read_errors(name):
        stream = _own_standard_input()
        first = stream.readline().removeprefix(UTF8_MARK)
        lines = itertools.chain([first] if first else [], iter(stream.readline, b""))
        kind = "jsonl" if first.lstrip().startswith(b"{") else "csv"
        yield from _parse(((0, line) for line in lines), kind, name, columns, first)


def _own_standard_input() -> BinaryIO:
    """Standard input with a buffer of our own: Python cannot exit while a thread waits in the buffer of `sys.stdin`."""
    try:
        return open(os.dup(sys.stdin.fileno()), "rb")
    except (OSError, ValueError, AttributeError):  # a stream without a file, as in tests
        return sys.stdin.buffer


def _parse(
    lines: Iterable[tuple[int, bytes]], kind: str, name: str, columns: Columns, head: bytes
) -> Iterator[tuple[str, Row]]:
    """head: the file's beginning, which tells what separates the cells of a table."""
    lines = split_at_returns(lines)
    if kind == "jsonl":
        return _sound(json_rows(lines), name)
    quoted = columns.quoted if columns.quoted is not None else kind == "csv"
    cells = _separator(head, kind, name) + (QUOTE if quoted else "")
    return _named(_sound(table_rows(lines, cells, strict=quoted), name), columns, quoted)


def _separator(head: bytes, kind: str, name: str) -> str:
    """What separates the cells of a table: for csv the comma, unless the beginning of the file shows another one."""
    if kind == "tsv":
        return "\t"
    found, rows = cells_of(head, len(head) < _HEAD, [mark + QUOTE for mark in _SEPARATORS])
    separator = found[0] if rows and len(rows[0]) > 1 else _SEPARATORS[0]
    if separator != _SEPARATORS[0]:
        log_choice(f"separator of {name}", repr(separator), "all of its first rows have as many cells by it")
    return separator


def _sound(rows: Iterable[FileRow[Cells]], name: str) -> Iterator[tuple[str, Cells]]:
    """(where, cells) of each row. Raises BertsmithError at the first that is not UTF-8 or has a fault."""
    for row in rows:
        if not row.is_utf8:
            line = row.line + _lines_before_fault(row.raw)
            fix = "convert the file, with iconv for example"
            raise BertsmithError("this line is not UTF-8", f"{name}:{line}", fix)
        if row.cells is None:
            what, fix = _FAULTS.get(row.fault, (f"this row cannot be read ({row.fault})", "check its quotation marks"))
            detail = f" ({row.detail})" if row.detail else ""
            raise BertsmithError(f"{what}{detail}", f"{name}:{row.line}", fix)
        yield f"{name}:{row.line}", row.cells


def _lines_before_fault(raw: bytes) -> int:
    """How many lines of a row stand before the one that is not UTF-8."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return len(raw[: error.start].splitlines(keepends=True)) - (not raw[: error.start].endswith((b"\n", b"\r")))
    return 0


def _named(rows: Iterable[tuple[str, list[str]]], columns: Columns, quoted: bool) -> Iterator[tuple[str, Row]]:
    """The rows of a table with the names of their columns."""
    names: list[str] = []
    for where, cells in rows:
        if not names:
            names = cells if columns.header else [str(number) for number in range(1, len(cells) + 1)]
            if len(set(names)) < len(names):
                raise BertsmithError("two columns have one name", where, "give every column a name of its own")
            if columns.header:
                continue
        if len(cells) != len(names):
            what = f"this row has {len(cells)} fields and the first one has {len(names)}"
            fix = "quote fields that contain the separator" if quoted else "say if the fields are quoted, or correct it"
            raise BertsmithError(what, where, fix)
        yield where, dict(zip(names, cells, strict=True))


def has_lone_surrogate(text: str) -> bool:
    """Whether a text holds half of a surrogate pair, which JSON can write ("\\ud800") and UTF-8 cannot."""
    return not text.isascii() and _SURROGATE.search(text) is not None
