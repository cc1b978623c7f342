"""Rows as records of a task; a bad row is named by its file and line."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

from bertsmith.base.errors import BertsmithError, TypeChecked, nearest
from bertsmith.base.log import counted, warn
from bertsmith.tasks.reading.bad_rows import BadRow, Report, SkippedRows, leave_out_or_refuse, pass_over, raise_at_once
from bertsmith.tasks.reading.cells import LacksColumn, found_in, name_one
from bertsmith.tasks.reading.files import Form, name_of, rows_of
from bertsmith.tasks.reading.files import Row as Row
from bertsmith.tasks.reading.files import Source as Source
from bertsmith.tasks.reading.labels import class_name, label_text
from bertsmith.tasks.reading.shapes import is_missing

NUMBERED_CHOICES = ("choice", "ending")
"""Columns of a choice each, numbered from 0, where no others are named."""
_ROWS_THAT_TELL = 100
"""So many without a column, and none with it, tell that it is not there."""
_VERDICT, _AGAINST = "answer", ("reject", "ignore")
"""Where Prodigy's rows tell what an annotator thought of them, and those that it leaves out itself."""
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Columns(TypeChecked):
    """Where a record's parts stand in a row."""

    text: str = "text"
    """The column of the text, or of the first of two; of multiple choice, of what all choices continue."""
    text_b: str = "text_b"
    """The column of the second text; single texts where the rows have no 'text_b', an error where they lack another."""
    label: str = "label"
    """The column of the label, or of a list of labels; or columns of 0 and 1, one for each label, joined by commas
    (classify)."""
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
    tag_names: str | None = None
    """What tags that are whole numbers stand for, from 0 and joined by commas; --labels in training (tag)."""
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
    """Whether fields may be quoted. Unless given, those of csv are and those of tsv are not, as in GLUE's files."""

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """What `dataclasses.asdict` made of one, read back from JSON. ValueError says what is wrong with it."""
        if not isinstance(values, dict):
            raise ValueError(f"columns is {values!r}, not an object")
        kinds = {each.name: type(each.default) for each in fields(cls)}
        optional = {"quoted": bool, "tag_names": str}
        for name, value in values.items():
            if name not in kinds:
                raise ValueError(f"there is no '{name}' among the columns; {nearest(name, kinds)}")
            if type(value) not in (kinds[name], optional.get(name, kinds[name])):
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


@dataclass(frozen=True)
class Truncated:
    """How many rows lost tokens, and how many tokens these were."""

    rows: int
    tokens: int


class RowReader:
    """How a row becomes a record: here one or two texts and one label. Tasks with other rows have their own.

    remedy: what to do where the model is not what the rows are for, beside correcting them.
    """

    remedy: ClassVar[str] = ""

    @classmethod
    def wanted(cls, columns: Columns, labelled: bool) -> dict[str, str]:
        """The columns that every row must have, by the field of `Columns` that names each."""
        wanted = {"text": columns.text}
        wanted |= {"text_b": columns.text_b} if columns.text_b != Columns.text_b else {}
        # Whether a name with commas is that of one column, its rows tell.
        return wanted | ({"label": columns.label} if labelled and "," not in columns.label else {})

    @classmethod
    def prompts(cls, columns: Columns) -> list[str]:
        """The columns of a row that a person is asked for one by one."""
        return list(cls.wanted(columns, labelled=False).values()) or [columns.text]

    @classmethod
    def used(cls, columns: Columns) -> tuple[str, ...]:
        """All columns that records are made of, whether a row must have them or not."""
        labels = columns_of(columns.label, ())
        return columns.text, columns.text_b, columns.label, *labels, columns.id, columns.group

    @classmethod
    def record(cls, row: Row | str, columns: Columns, labelled: bool, where: str) -> Record:
        """A row as a record; a bare string is a text. ValueError says what is wrong with it."""
        row = row_of(row, columns.text)
        label = label_of(row, columns.label) if labelled else None
        text = text_of(row, columns.text)
        is_pair = "text_b" in cls.wanted(columns, labelled) or _has_second(row, columns)
        second = text_of(row, columns.text_b) if is_pair else None
        return Record(text, second, label, where, id_of(row, columns))

    @classmethod
    def check_bad_rows(cls, records: Sequence[Record], bad: Sequence[BadRow], name: str | Path) -> None:
        """Raises BertsmithError where the bad rows of a file show that its other rows are misread too."""

    @classmethod
    def texts(cls, record: Record) -> tuple[str | None, ...]:
        """All texts of a record: two records with the same ones are copies."""
        return record.text, record.text_b

    @classmethod
    def unit(cls, record: Record) -> tuple[str | None, ...]:
        """The texts that records share which may not be divided into training and dev rows."""
        return cls.texts(record)

    @classmethod
    def alone(cls, record: Record) -> tuple[str | None, ...]:
        """The texts of which one alone makes a score too good where it stands in two parts; none as a rule."""
        return ()

    @classmethod
    def stratum(cls, record: Record) -> Any:
        """What training and dev rows are balanced by, for `split.strata`: a class, a number, or several classes."""
        label = record.label
        return class_name(label) if isinstance(label, str) else label


class NoColumn(BertsmithError):
    """A row lacks a column that is wanted."""


def read_records(
    source: Source,
    columns: Columns | None = None,
    labelled: bool = True,
    reader: type[RowReader] = RowReader,
    skipped: SkippedRows | None = None,
    name: str = "",
) -> list[Record]:
    """All records of a file (`files.rows_of`) or of a list of rows.

    labelled: a label is wanted in every row; otherwise it is None. skipped: is given the rows that cannot be used;
    without it every row counts. name: of rows of Python, such as "the dev rows". Raises BertsmithError that names the
    bad rows by file and line, a missing column with those that were found, and an empty source.
    """
    columns, is_file = columns or Columns(), isinstance(source, str | Path)
    bad: list[BadRow] = []
    records: list[Record] = []
    lacking: list[NoColumn] = []
    rejected: list[str] = []
    some_are_whole = False

    def refused() -> NoColumn:
        first = lacking[0]
        return first if is_file or not name else NoColumn(first.what, f"{first.where} of {name}", first.fix)

    def add(where: str, row: Row | str, lacks: NoColumn | None = None) -> None:
        try:
            record = reader.record(row, columns, labelled, where)
        except ValueError as error:
            bad.append((lacks or unusable(error, where), row))
        else:
            records.append(_in_its_group(record, row, columns))
            rejected.extend([where] if _is_rejected(row) else [])

    def keep(error: BertsmithError, row: Any) -> None:
        if isinstance(error, NoColumn):
            lacking.append(error)
            if not some_are_whole and len(lacking) == _ROWS_THAT_TELL:
                raise refused()
            add(error.where, row, error)  # not every part is one that every row must have
        elif skipped is None:
            raise error
        else:
            bad.append((error, row))

    for where, row in read_rows(source, columns, labelled, reader, keep):
        some_are_whole = True
        add(where, row)
    if lacking and not some_are_whole:
        raise refused()
    name = name_of(source) if isinstance(source, str | Path) else name or "the rows"
    reader.check_bad_rows(records, bad, name)
    _warn_of_rejected(rejected if labelled and _VERDICT not in reader.used(columns) else [], name)
    leave_out_or_refuse(bad, len(records), name, skipped, "correct or remove these rows")
    if not records:
        raise no_rows(name) if is_file else BertsmithError("no rows found", name, "give a list with at least one row")
    return records


def _in_its_group(record: Record, row: Row | str, columns: Columns) -> Record:
    group = row.get(columns.group) if isinstance(row, Mapping) else None
    return record if is_missing(group) else replace(record, group=str(group))


def _is_rejected(row: Row | str) -> bool:
    verdict = row.get(_VERDICT) if isinstance(row, Mapping) else None
    return isinstance(verdict, str) and verdict in _AGAINST


def _warn_of_rejected(rows: Sequence[str], name: str) -> None:
    if rows:
        what = f"{counted(len(rows), 'row')} of {name} with {' or '.join(_AGAINST)} in column '{_VERDICT}'"
        warn(f"{what}, such as {rows[0]}, used like the others; remove them if they are no examples", of_all_ranks=True)


def no_rows(name: str) -> BertsmithError:
    """Of a file of this name that has none."""
    fix = "give at least one row; a table's first line is its column names, unless --columns.no-header says otherwise"
    return BertsmithError("no rows found", name, fix)


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
    check_characters(label, column)
    return label


def columns_of(name: str, there: Container[str]) -> list[str]:
    """The columns that a name stands for: the one that is called so, else those that it joins by commas."""
    return [name] if name in there or "," not in name else [each.strip() for each in name.split(",")]


def id_of(row: Row, columns: Columns) -> str | None:
    """The name of a row, None where it has none."""
    value = row.get(columns.id)
    return None if is_missing(value) else str(value)


def _has_second(row: Row, columns: Columns) -> bool:
    """Whether a row has a second text. An empty `text_b` is none, unless the user named the column."""
    named = columns.text_b != Columns.text_b
    return columns.text_b in row and (named or not is_missing(row[columns.text_b]))


def text_of(row: Row, column: str) -> str:
    """The text in a column. ValueError where there is none, or an empty one."""
    if column not in row:
        raise ValueError(f"no column '{column}'; {found_in(row)}")
    text = row[column]
    if not isinstance(text, str):
        # Of a file, or of a mapping of columns, as other libraries take a table.
        of_many = ", but a list; a row holds one text, so give a row for each" if isinstance(text, list) else ""
        raise ValueError(f"column '{column}' holds no text{of_many}")
    if not text.strip():
        raise ValueError(f"column '{column}' is empty")
    check_characters(text, column)
    return text


def check_characters(text: str, column: str) -> None:
    """ValueError for a text that holds what is no character."""
    if has_lone_surrogate(text):
        raise ValueError(f"column '{column}' holds {no_characters(text)}, which is not a character")


def read_rows(
    source: Source,
    columns: Columns,
    labelled: bool = False,
    reader: type[RowReader] = RowReader,
    report: Report = raise_at_once,
) -> Iterator[tuple[str, Row | str]]:
    """(where, row) for every row, as `rows_of` gives them.

    labelled: rows to learn from, so that the label's column is wanted too. report: is given what is wrong with a row:
    bytes that are not UTF-8, a line that is not a row of its kind, a column missing that is wanted. Raises
    BertsmithError for a file that is missing, damaged, of another kind, or may not be read.
    """
    wanted = reader.wanted(columns, labelled)
    names = set(wanted.values())
    for where, row in rows_of(source, Form(columns.header, columns.quoted), report):
        if isinstance(row, Mapping) and not row.keys() >= names:
            field, name = next((field, name) for field, name in wanted.items() if name not in row)
            report(NoColumn(f"there is no column '{name}'", where, f"{found_in(row)}; {name_one(field)}"), row)
        else:
            yield where, row


def unusable(error: ValueError, where: str, fix: str = "") -> BertsmithError:
    """What is wrong with a row, from what its reader raised. fix: where a column that is not there is not the fault."""
    if isinstance(error, LacksColumn):
        return NoColumn(str(error), where, error.fix)
    return BertsmithError(str(error), where, fix)


def first_columns(source: Source, columns: Columns, skipped: SkippedRows | None) -> list[str]:
    """The columns of the first row, with `skipped` of the first that can be read. Raises BertsmithError as `rows_of`
    does."""
    report = raise_at_once if skipped is None else pass_over
    _, row = next(rows_of(source, Form(columns.header, columns.quoted), report), ("", ""))
    return list(row) if isinstance(row, Mapping) else []


def has_lone_surrogate(text: str) -> bool:
    """Whether a text holds half of a surrogate pair, which JSON can write ("\\ud800") and UTF-8 cannot."""
    return not text.isascii() and _SURROGATE.search(text) is not None


def no_characters(text: str) -> str:
    """What a text with a lone surrogate holds. Bytes that are not UTF-8 stand in parquet's texts as low ones, of which
    the cut-off emoji of a JSON file may be one, too."""
    are_bytes = all("\udc80" <= each <= "\udcff" for each in _SURROGATE.findall(text))
    return "bytes that are not UTF-8, or half of a surrogate pair" if are_bytes else "half of a surrogate pair"
