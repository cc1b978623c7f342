"""Rows of csv, tsv and jsonl files, or of Python, as records; a bad row is named by its file and line."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Self, TextIO

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.files import read_errors

KINDS = ("csv", "tsv", "jsonl")
_SHOWN = 5
_SURROGATE = re.compile("[\ud800-\udfff]")

Row = Mapping[str, Any]
Source = str | Path | Sequence[Row | str]


@dataclass(frozen=True)
class Columns:
    """Where a record's parts stand in a row."""

    text: str = "text"
    """The column of the text, or of the first of two."""
    text_b: str = "text_b"
    """The column of the second text; single texts where the rows have no 'text_b', an error where they lack another."""
    label: str = "label"
    """The column of the label."""
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
    """One or two texts and a label; where: "file:line" or "row 3", for messages."""

    text: str
    text_b: str | None
    label: str | None
    where: str


def read_records(source: Source, columns: Columns | None = None, labelled: bool = True) -> list[Record]:
    """All records of a file (csv, tsv, jsonl) or of a list of rows; every row counts, none is skipped.

    labelled: a label is wanted in every row; otherwise it is None. Raises BertsmithError that names the bad rows by
    file and line, a missing column together with those that were found, and an empty source.
    """
    columns = columns or Columns()
    bad: list[str] = []
    records: list[Record] = []
    for where, row in read_rows(source, columns, labelled):
        try:
            records.append(to_record(row, columns, labelled, where))
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
            "mend or remove these rows; nothing was done",
        )
    if not records:
        raise BertsmithError("there is no row here", name, "give a file with at least one row behind the header")
    return records


def to_record(row: Row | str, columns: Columns, labelled: bool, where: str) -> Record:
    """A row as a record; a bare string is a text. ValueError says what is wrong with it."""
    if isinstance(row, str):
        row = {columns.text: row}
    label = row.get(columns.label) if labelled else None
    if labelled and (label is None or label == ""):
        raise ValueError(f"no label in column '{columns.label}'")
    if label is not None and not isinstance(label, str):
        label = json.dumps(label)
    if label is not None:
        _check_characters(label, columns.label)
    text = _text(row, columns.text)
    return Record(text, _text(row, columns.text_b) if columns.text_b in row else None, label, where)


def _text(row: Row, column: str) -> str:
    text = row.get(column)
    if not isinstance(text, str):
        raise ValueError(f"column '{column}' holds no text" if column in row else f"no column '{column}'")
    if not text.strip():
        raise ValueError(f"column '{column}' is empty")
    _check_characters(text, column)
    return text


def _check_characters(text: str, column: str) -> None:
    if has_lone_surrogate(text):
        raise ValueError(f"column '{column}' holds half of a surrogate pair, which is no character")


def read_rows(source: Source, columns: Columns, labelled: bool = False) -> Iterator[tuple[str, Row | str]]:
    """(where, row) for every row. "-" is standard input: jsonl where it begins with a brace, else csv.

    labelled: rows to learn from, so that the label's column is wanted too. Raises BertsmithError for a file that is
    missing, may not be read or is not UTF-8, for a line that is no row of its kind, and for one without a column that
    is wanted: the text's, and the second text's where it was given a name.
    """
    wanted = {"text": columns.text}
    wanted |= {"text_b": columns.text_b} if columns.text_b != Columns.text_b else {}
    wanted |= {"label": columns.label} if labelled else {}
    for where, row in _rows(source, columns):
        if not isinstance(row, str) and not row.keys() >= set(wanted.values()):
            field, name = next((field, name) for field, name in wanted.items() if name not in row)
            fix = f"found are: {', '.join(row) or 'none'}; " + (
                f"name one with --columns.{field}, in Python Columns({field}=...)"
                if labelled
                else f"rename one, for this model reads '{name}'"
            )
            raise BertsmithError(f"there is no column '{name}'", where, fix)
        yield where, row


def _rows(source: Source, columns: Columns) -> Iterator[tuple[str, Row | str]]:
    if not isinstance(source, str | Path):
        yield from ((f"row {number}", row) for number, row in enumerate(source, start=1))
        return
    if str(source) == "-":
        with _standard_input() as stream:
            lines = _utf8_lines(stream, "standard input")
            first = next(lines, "")
            kind = "jsonl" if first.lstrip().startswith("{") else "csv"
            yield from _parse(itertools.chain([first], lines), kind, "standard input", columns)
        return
    path = Path(source)
    kind = path.suffix.lstrip(".").lower()
    if kind not in KINDS:
        raise BertsmithError(
            f"'{path.suffix}' is not a kind of file that is read here", path, f"use {', '.join(KINDS)}"
        )
    try:
        with read_errors(path), open(path, "rb") as file, _as_text(file) as stream:
            yield from _parse(_utf8_lines(stream, str(path)), kind, str(path), columns)
    except FileNotFoundError as error:
        raise BertsmithError("this file does not exist", path, "check the path") from error


@contextmanager
def _standard_input() -> Iterator[TextIO]:
    if sys.stdin is None:
        raise BertsmithError("standard input is closed", "-", "pipe rows into the command, or name a file")
    with read_errors("standard input"), _as_text(sys.stdin.buffer) as stream:
        yield stream


@contextmanager
def _as_text(file: BinaryIO) -> Iterator[TextIO]:
    """A stream of bytes as UTF-8, whatever the locale says; it is not closed. What is not UTF-8 becomes surrogates."""
    stream = io.TextIOWrapper(file, encoding="utf-8-sig", errors="surrogateescape", newline="")
    try:
        yield stream
    finally:
        stream.detach()


def _utf8_lines(stream: TextIO, name: str) -> Iterator[str]:
    """The lines of a stream. Raises BertsmithError at the first that holds a surrogate, for it was not UTF-8."""
    for number, line in enumerate(stream, start=1):
        if has_lone_surrogate(line):
            raise BertsmithError(
                "this line is not UTF-8", f"{name}:{number}", "convert the file, with iconv for example"
            )
        yield line


def has_lone_surrogate(text: str) -> bool:
    """Whether a text holds half of a surrogate pair, which JSON can write ("\\ud800") and UTF-8 cannot."""
    return not text.isascii() and _SURROGATE.search(text) is not None


def _parse(lines: Iterable[str], kind: str, name: str, columns: Columns) -> Iterator[tuple[str, Row]]:
    return _json_rows(lines, name) if kind == "jsonl" else _table_rows(lines, kind, name, columns)


def _json_rows(lines: Iterable[str], name: str) -> Iterator[tuple[str, Row]]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise BertsmithError(
                f"this line is not JSON ({error.msg})", f"{name}:{number}", "write an object a line"
            ) from error
        if not isinstance(row, dict):
            raise BertsmithError(
                "this line is not a JSON object", f"{name}:{number}", 'write {"text": ..., "label": ...}'
            )
        yield f"{name}:{number}", row


def _table_rows(lines: Iterable[str], kind: str, name: str, columns: Columns) -> Iterator[tuple[str, Row]]:
    csv.field_size_limit(2**31 - 1)  # a field is a document, which may be long
    quoted = columns.quoted if columns.quoted is not None else kind == "csv"
    reader = csv.reader(
        lines,
        delimiter="," if kind == "csv" else "\t",
        quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
        strict=quoted,
    )
    names: list[str] = []
    line = 1  # a quoted field may span lines, so this is where the row begins
    try:
        for fields in reader:
            where, line = f"{name}:{line}", reader.line_num + 1
            if not fields:
                continue
            if not names:
                names = fields if columns.header else [str(number) for number in range(1, len(fields) + 1)]
                if len(set(names)) < len(names):
                    raise BertsmithError("two columns have one name", where, "give every column a name of its own")
                if columns.header:
                    continue
            if len(fields) != len(names):
                raise BertsmithError(
                    f"this row has {len(fields)} fields and the first one has {len(names)}",
                    where,
                    "quote fields that contain the separator"
                    if quoted
                    else "tell if the fields are quoted, or mend the row",
                )
            yield where, dict(zip(names, fields, strict=True))
    except csv.Error as error:
        raise BertsmithError(
            f"this row cannot be read ({error})", f"{name}:{line}", "check its quotation marks"
        ) from error
