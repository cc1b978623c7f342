"""Rows of csv, tsv, jsonl, parquet, JSON and CoNLL files, of standard input, or of Python, as they come.

Every row has a name for messages: "file:line", or "row 3". What is wrong with one is reported.
"""

from __future__ import annotations

import itertools
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, Any, TypeVar

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import read_errors
from bertsmith.base.log import counted, log_choice, say
from bertsmith.rows.compressed import (
    MAGIC,
    CompressedFile,
    check_readable,
    codec_of,
    damage_of,
    is_archive,
    packing,
    peek,
    suffix_within,
)
from bertsmith.rows.encodings import UTF8_MARK, check_marked, encoding_of
from bertsmith.rows.json_lines import NO_OBJECT, NOT_JSON, REPEATED, json_rows
from bertsmith.rows.lines import Lines, Slice, head_of, raise_fault, split_at_returns
from bertsmith.rows.parquet import MAGIC as PARQUET_MAGIC
from bertsmith.rows.parquet import doubled, parquet_rows
from bertsmith.rows.row import Row as FileRow
from bertsmith.rows.tables import OPEN_QUOTE, QUOTE, are_quoted, cells_of, named_separator, table_rows
from bertsmith.tasks.reading.bad_rows import NOT_UTF8, Report, to_utf8
from bertsmith.tasks.reading.documents import document_kind, document_rows

Cells = TypeVar("Cells")
Row = Mapping[str, Any]
Source = str | Path | Sequence[Row | str]

KINDS = ("csv", "tsv", "jsonl", "parquet")
# Other names of files of JSON lines; where a .json file is none, `document_kind` says so.
_JSON_LINES = ("ndjson", "json")
# Of csv files; the first where their beginning does not tell.
_SEPARATORS = ",;\t|"
_HEAD = 1 << 16
_USUAL_NAMES = {"id", "idx", "index", "text", "text_b", "label", "sentence", "sentence1", "sentence2", "score"}
# Behind a space a quote is a part of its cell, and so are the separators up to the next one.
_QUOTED_BEHIND_SPACE = re.compile(r'\s+"(?:[^"]|"")*"\s*')
# What can be gone through in Python, but not row by row.
_NO_ROWS = (Mapping, Set, bytes, bytearray)
# Of tables of pyarrow and of polars, as mappings; then those of pandas.
_GIVES_ROWS = ("to_pylist", "to_dicts")
_OF_PANDAS = 'of a table of pandas give table.to_dict("records")'
# The message for a fault, and what to do about it.
_FAULTS = {
    NOT_JSON: ("this line is not JSON", "write an object a line"),
    NO_OBJECT: ("this line is not a JSON object", 'write {"text": ..., "label": ...}'),
    REPEATED: ("this line has a key twice", "give each key once"),
    OPEN_QUOTE: ("this row cannot be read: its quote is never closed", "close the quote, or double it inside a field"),
}


@dataclass(frozen=True)
class Form:
    """How tables are written. header: whether the first line names the columns; if not they are named 1, 2, 3 and so
    on. quoted: whether fields may be quoted; None decides by the kind of file."""

    header: bool = True
    quoted: bool | None = None


def is_pipe(source: Any) -> bool:
    """Whether rows can be read once only, as they come: of "-", which is standard input, and of named pipes."""
    if not isinstance(source, str | Path):
        return False
    try:
        return str(source) == "-" or stat.S_ISFIFO(os.stat(source).st_mode)
    except (OSError, ValueError):  # which the reader says better
        return False


def name_of(source: str | Path) -> str:
    """What a source is called in messages."""
    return "standard input" if str(source) == "-" else str(source)


def rows_of(source: Source, form: Form, report: Report) -> Iterator[tuple[str, Row | str]]:
    """(where, row) for every row. "-" is standard input; of that and of other pipes the beginning tells whether they
    are compressed, and without a name that says so that they are jsonl, by a brace, and else csv.

    report: is given what is wrong with a row, and the row. Raises BertsmithError for a file that is missing, damaged,
    may not be read, is of another kind, or has a line of names that cannot be used.
    """
    if not isinstance(source, str | Path):
        yield from named_rows(source)
    elif is_pipe(source):
        yield from _piped_rows(source, form, report)
    else:
        yield from _file_rows(Path(source), form, report)


def named_rows(rows: Iterable[Row | str]) -> Iterator[tuple[str, Row | str]]:
    """(where, row) for rows that are given in Python. Raises BertsmithError for what is no list of rows: a table of
    pandas would be read as the names of its columns, and a mapping as its keys."""
    if hasattr(rows, "columns") or not _is_iterable(rows):
        raise no_list(rows, "the rows", "give a list of texts, or of mappings")
    return ((f"row {number}", _named_by_texts(row, number)) for number, row in enumerate(rows, start=1))


def no_list(rows: object, name: str, fix: str) -> BertsmithError:
    """For what is given in place of a list of rows. name: what the rows are called. fix: where nothing better is
    known."""
    if hasattr(rows, "columns"):
        fix = next((f"give table.{name}()" for name in _GIVES_ROWS if hasattr(rows, name)), _OF_PANDAS)
    elif _is_iterable(rows):
        fix = "give list(...) of them, as they are read more than once"
    return BertsmithError(f"{name} are of type {type(rows).__name__}, which is no list of rows", name, fix)


def _is_iterable(rows: object) -> bool:
    """Whether these may be rows, one by one: not what is one text, and no array of NumPy without an axis."""
    return isinstance(rows, Iterable) and not isinstance(rows, _NO_ROWS) and getattr(rows, "ndim", 1) != 0


def _named_by_texts(row: Row | str, number: int) -> Row | str:
    """A row whose columns may have numbers for names, as those of a table of pandas without a header. Raises
    BertsmithError for other names that are no text, such as the None under which `csv.DictReader` has cells too many,
    and for a number beside the same one as a text.
    """
    if not isinstance(row, Mapping) or all(isinstance(name, str) for name in row):
        return row
    if odd := [repr(name) for name in row if not isinstance(name, str | int)]:
        what, fix = f"a column is called {odd[0]}, which is no text", "give every column a name that is a text"
        raise BertsmithError(what, f"row {number}", fix)
    names = list(map(str, row))
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise doubled(twice, f"row {number}")
    return dict(zip(names, row.values(), strict=True))


def _file_rows(path: Path, form: Form, report: Report) -> Iterator[tuple[str, Row]]:
    codec, name = codec_of(path), str(path)
    kind = suffix_within(path, codec).lstrip(".")
    start = peek(path, codec, _HEAD)
    if is_archive(start) or (codec and packing(start)):
        what = "this is an archive, a workbook of Excel, or compressed twice, whatever its name says"
        raise BertsmithError(what, path, "unpack it, or save its table as csv in UTF-8")
    if kind != "parquet":
        check_marked(start, name, codec)
    part = Slice(name, name, kind, codec, encoding=encoding_of(start))
    if document := document_kind(part):
        yield from document_rows(part, document, report)
        return
    kind = "jsonl" if kind in _JSON_LINES else kind
    if not codec and kind in MAGIC:
        what = f"the content of this file is not compressed as its name says ('{path.suffix}')"
        raise BertsmithError(what, path, "take the ending from its name, or compress it")
    if kind not in KINDS or (codec and kind == "parquet"):
        what = f"'{path.suffix}' is not a kind of file that is read here"
        kinds = f"{', '.join(KINDS)}, SQuAD's json or CoNLL's columns"
        raise BertsmithError(what, path, f"use {kinds}; all but parquet may be compressed")
    if kind == "parquet":
        yield from ((f"{name}, row {number}", row) for number, row in parquet_rows(name))
        return
    head = head_of(name, codec, part.encoding, _HEAD)
    yield from _parse(Lines(part, None, raise_fault, cut=False), _File(kind, name, form, head, path), report)


def _piped_rows(source: str | Path, form: Form, report: Report) -> Iterator[tuple[str, Row]]:
    """Rows as they come: the first line alone tells what they are."""
    name = name_of(source)
    with read_errors(name), _opened(source) as stream:
        head = stream.readline()
        if codec := packing(head):
            check_readable(codec, name)
            stream, head = CompressedFile(stream, codec, head), b""
        lines = _lines_of(stream, head, name)
        first = next(lines, b"").removeprefix(UTF8_MARK)
        check_marked(first, name, codec)
        if first.startswith(PARQUET_MAGIC):
            raise BertsmithError("parquet cannot be read from a pipe", name, "write it to a file, and name that")
        kind = suffix_within(source, codec).lstrip(".")
        kind = "jsonl" if kind in _JSON_LINES else kind
        if kind not in ("csv", "tsv", "jsonl"):
            kind = "jsonl" if first.lstrip().startswith(b"{") else "csv"
        every = itertools.chain([first] if first else [], lines)
        yield from _parse(((0, line) for line in every), _File(kind, name, form, first), report)


def _lines_of(stream: IO[bytes], head: bytes, name: str) -> Iterator[bytes]:
    """The lines of a stream behind the one that was read. Raises BertsmithError where it is damaged."""
    line = head or stream.readline()
    while line and not damage_of(stream):
        yield line
        line = stream.readline()
    if damage := damage_of(stream):
        raise BertsmithError(f"this cannot be read to its end ({damage})", name, "compress it again")


@contextmanager
def _opened(source: str | Path) -> Iterator[IO[bytes]]:
    """A pipe, or standard input with a buffer of our own: while a thread waits in that of `sys.stdin`, Python cannot
    exit."""
    if str(source) == "-" and sys.stdin is None:
        raise BertsmithError("standard input is closed", "standard input", "pipe rows into the command, or name a file")
    try:
        pipe = os.dup(sys.stdin.fileno()) if str(source) == "-" else source
    except (OSError, ValueError, AttributeError):  # a stream without a file, as in tests
        yield sys.stdin.buffer
    else:
        with open(pipe, "rb") as file:
            yield file


@dataclass(frozen=True)
class _File:
    """kind: "csv", "tsv" or "jsonl". head: its beginning, which tells what separates the cells of a table. path: None
    of a pipe."""

    kind: str
    name: str
    form: Form
    head: bytes
    path: Path | None = None

    @property
    def quoted(self) -> bool:
        return self.form.quoted if self.form.quoted is not None else self.kind == "csv"


def _parse(lines: Iterable[tuple[int, bytes]], file: _File, report: Report) -> Iterator[tuple[str, Row]]:
    lines = split_at_returns(lines)
    if file.kind == "jsonl":
        return ((where, cells) for where, cells, _ in _sound(json_rows(lines, strict=True), file, report))
    cells = _separator(file.head, file.kind, file.name) + (QUOTE if file.quoted else "")
    whole_lines = file.head if len(file.head) < _HEAD else file.head.rpartition(b"\n")[0]
    if file.kind == "tsv" and file.form.quoted is None and are_quoted(whole_lines.decode(errors="replace"), cells):
        why = "as usual in tsv files; where they quote fields as those of csv do: --columns.quoted"
        log_choice(f"quotes in {file.name}", "read as parts of the text", why)
    rows = table_rows(lines, cells, strict=file.quoted, blank=True)
    return _named(_sound(rows, file, report, first_must_be=True), file, report)


def _separator(head: bytes, kind: str, name: str) -> str:
    """What separates the cells of a table: what its first line names (`named_separator`), for tsv the tab, for csv the
    comma, unless the beginning of the file shows another one."""
    if named := named_separator(head):
        log_choice(f"separator of {name}", repr(named), "its first line names it, and is not a row")
        return named
    if kind == "tsv":
        return "\t"
    found, rows = cells_of(head, len(head) < _HEAD, [mark + QUOTE for mark in _SEPARATORS])
    separator = found[0] if rows and len(rows[0]) > 1 else _SEPARATORS[0]
    if separator != _SEPARATORS[0]:
        log_choice(f"separator of {name}", repr(separator), "all of its first rows have as many cells by it")
    return separator


def _sound(
    rows: Iterable[FileRow[Cells]], file: _File, report: Report, first_must_be: bool = False
) -> Iterator[tuple[str, Cells, bytes]]:
    """(where, cells, bytes) of each row; one that is not UTF-8 or has a fault is reported.

    first_must_be: the first row that is not blank says how the others are read, so BertsmithError is raised where it
    cannot be used.
    """
    name, utf8_fix = file.name, cache(to_utf8)
    for row in rows:
        error = None
        if not row.is_utf8:
            line = row.line + _lines_before_fault(row.raw)
            error = BertsmithError(f"this line is {NOT_UTF8}", f"{name}:{line}", utf8_fix(file.path))
        elif row.cells is None:
            escaped = 'write "" for a quote inside a field, not \\"'
            quotes = escaped if b'\\"' in row.raw else "check its quotation marks"
            what, fix = _FAULTS.get(row.fault, (f"this row cannot be read ({row.fault})", quotes))
            detail = f" ({row.detail})" if row.detail else ""
            error = BertsmithError(f"{what}{detail}", f"{name}:{row.line}", fix)
        if error is not None and first_must_be:
            raise error
        if error is not None:
            report(error, row.raw)
        elif row.cells is not None:
            first_must_be = first_must_be and not row.cells
            yield f"{name}:{row.line}", row.cells, row.raw


def _lines_before_fault(raw: bytes) -> int:
    """How many lines of a row stand before the one that is not UTF-8."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return len((raw[: error.start] + b"?").splitlines()) - 1
    return 0


def _named(rows: Iterable[tuple[str, list[str], bytes]], file: _File, report: Report) -> Iterator[tuple[str, Row]]:
    """The rows of a table with the names of their columns. A blank line is a row with an empty cell where there is one
    column; where there are several, and before the first row, it is passed over, and counted in the log. Those at the
    end are no rows of either."""
    names: list[str] = []
    passed_over, last, blank = 0, 0, list[str]()
    for where, cells, raw in rows:
        if not cells and len(names) != 1:
            last += 1
            continue
        if not cells:
            blank.append(where)
            continue
        passed_over, last = passed_over + last, 0
        yield from ((each, {names[0]: ""}) for each in blank)
        blank.clear()
        if not names:
            names = cells if file.form.header else [str(number) for number in range(1, len(cells) + 1)]
            if twice := next((name for place, name in enumerate(names) if name in names[:place]), None):
                raise doubled(twice, where)
            if file.form.header:
                continue
        if fault := _fault(cells, names, raw, file):
            report(BertsmithError(fault[0], where, fault[1]), raw)
        else:
            yield where, dict(zip(names, cells, strict=True))
    if passed_over:
        say(f"{file.name}: {counted(passed_over, 'blank line')} before or between its rows passed over")


def _fault(cells: Sequence[str], names: Sequence[str], raw: bytes, file: _File) -> tuple[str, str] | None:
    """What is wrong with the cells of a row, and what to do about it."""
    if len(cells) != len(names):
        fix = "correct it, or where fields are quoted use --columns.quoted, in Python Columns(quoted=True)"
        if file.quoted:
            fix = "quote fields that contain the separator"
        return f"this row has {counted(len(cells), 'field')} and the first one has {len(names)}", fix
    if len(names) == 1:
        return None
    if file.form.header and cells[-1] == names[-1] and [cells[0].lstrip("\ufeff"), *cells[1:]] == names:
        fix = "remove it, as where files are joined that each begin with them"
        return "this row is the names of the columns again", fix
    if not file.form.header and _USUAL_NAMES.issuperset(cells):
        fix = "remove it, or give --columns.header where all files begin with names"
        return "this row holds names of columns, which --columns.no-header says there are none of", fix
    if file.quoted and b'"' in raw and any(_is_quoted_behind_space(cell, raw) for cell in cells):
        return "a quote behind a space quotes nothing", "leave no space between a separator and a quote"
    return None


def _is_quoted_behind_space(cell: str, raw: bytes) -> bool:
    """Whether the row has its space and its quotes as they are, and not within quotes."""
    if _QUOTED_BEHIND_SPACE.fullmatch(cell) is None:
        return False
    doubled_within = cell.replace('"', '""')
    return f'"{doubled_within}"'.encode() not in raw
