"""Documents of rows: JSON lines, csv, tsv and parquet. Rows without a document are counted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import size
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import Document, ReadOptions, batched
from bertsmith.corpus.reading import SURROGATES, Reading, no_such_field
from bertsmith.rows import parquet
from bertsmith.rows.json_lines import json_rows
from bertsmith.rows.lines import CUT_OFF, LONGEST_LINE, Slice, any_line, spaced
from bertsmith.rows.row import Row
from bertsmith.rows.tables import table_rows

# The field that names rows, where there is one.
_NAMES = "id"
LONGEST_CELL = LONGEST_LINE


def objects_with_text(reading: Reading, field: str) -> Iterator[tuple[int, dict[str, Any], str]]:
    """(first byte, object, its text) of JSON lines. A row that is no object is dropped as a document of its own bytes,
    an object without text in the field as one of none."""
    for row in json_rows(reading.lines(any_line)):
        replaced = "" if row.is_utf8 else reading.decode(row.raw, row.begin)
        if row.cells is None:
            reading.drop(row.fault, len(replaced.encode()) or row.size_bytes, reading.where(row.begin))
        elif isinstance(text := row.cells.get(field), str):
            yield row.begin, row.cells, reading.whole_text(text)
        else:
            reading.drop(f"rows without text in the field '{field}'", 0, reading.where(row.begin))


def read_jsonl(reading: Reading) -> Iterator[Document]:
    """The documents of JSON lines."""
    for begin, row, text in objects_with_text(reading, reading.options.text_field):
        yield Document(f"{reading.part.name}@{row.get(_NAMES, begin)}", text)


def _table(reading: Reading) -> Iterator[Row[list[str]]]:
    is_start = None if len(reading.part.cells) > 1 else any_line
    return table_rows(reading.lines(is_start, cut=False), reading.part.cells)


def read_table(reading: Reading) -> Iterator[Document]:
    """The documents of a table's rows. Rows with another number of cells than the header are dropped and counted."""
    part, field = reading.part, reading.options.text_field
    header = header_of(part)
    place = header.index(field)
    names = header.index(_NAMES) if _NAMES in header and field != _NAMES else None
    is_header = part.begin == 0
    for row in _table(reading):
        if row.cells is None:
            reading.drop(row.fault, row.size_bytes, reading.where(row.begin))
        elif is_header:
            is_header = False
        elif len(row.cells) != len(header):
            fault = "rows with another number of cells than the header"
            reading.drop(fault, len(row.raw), reading.where(row.begin))
        else:
            text = row.cells[place]
            if not row.is_utf8 and SURROGATES.search(text):
                reading.decode(row.raw, row.begin)  # counts them, where they stand
                text = _replaced(text)
            yield Document(f"{part.name}@{row.begin if names is None else _replaced(row.cells[names])}", text)


def _replaced(cell: str) -> str:
    """A cell in which bytes that are not UTF-8 stand as surrogates, with U+FFFD in their places."""
    return cell if cell.isascii() else cell.encode(errors="surrogateescape").decode(errors="replace")


def header_of(part: Slice) -> list[str]:
    """The names of a table's fields, from its first row."""
    start = Reading(replace(part, begin=0, end=None), ReadOptions(), Account())
    header = next((row.cells for row in _table(start) if row.cells is not None), list[str]())
    return [name.strip() for name in header]


def table_edges(part: Slice, part_bytes: int) -> list[int]:
    """Bytes at which a table is cut: where rows start."""
    rows = _table(Reading(part, ReadOptions(), Account()))
    return spaced((row.begin for row in rows if not row.fault), part_bytes)


def check_parquet(path: str, field: str) -> None:
    """Raises DamagedError, and BertsmithError where the file has no field of that name with text in it, or two."""
    fields = parquet.fields_of(path)
    if field not in fields:
        raise no_such_field(field, list(fields), path)
    if fields[field] == parquet.DOUBLED:
        raise parquet.doubled(field, path)
    if fields[field]:
        raise BertsmithError(f"the field '{field}' holds {fields[field]}, not text", path, "name one by --text-field")


def read_parquet(reading: Reading) -> Iterator[Document]:
    """The documents of the row groups that begin in the slice. A row group that is damaged is read up to the damage.

    Raises BertsmithError under `strict`, and where the file as a whole cannot be read.
    """
    name = reading.part.name
    for number, raw, row_name in _parquet_texts(reading):
        where = f"{name}, row {number:,}"
        reading.account.stream_bytes += len(raw)
        if len(raw) > LONGEST_CELL:
            what = f"cells longer than {size(LONGEST_CELL)}, {CUT_OFF}"
            reading.account.changed.note(what, 1, len(raw) - LONGEST_CELL, where)
            raw = raw[:LONGEST_CELL].decode(errors="ignore").encode()
        yield Document(f"{name}@{row_name}", reading.decode(raw, 0, where))


def regroup(reading: Reading, path: Path, group_bytes: int) -> None:
    """Writes the texts of a parquet file and the names of its rows into another, in row groups of about `group_bytes`
    of text. Raises BertsmithError as `read_parquet` does."""
    rows = ((raw, name) for _, raw, name in _parquet_texts(reading))
    groups = batched(rows, lambda row: len(row[0]), group_bytes)
    parquet.write_groups(path, reading.options.text_field, _NAMES, groups)


def _parquet_texts(reading: Reading) -> Iterator[tuple[int, bytes, str]]:
    """(its number in the file, text, name) of each row of the row groups that begin in the slice."""
    part, field = reading.part, reading.options.text_field
    named = field != _NAMES and parquet.fields_of(part.path).get(_NAMES, parquet.DOUBLED) != parquet.DOUBLED
    for first, batch in parquet.batches(part, [field, _NAMES] if named else [field], reading.report):
        texts = parquet.as_bytes(batch.column(field))
        names = batch.column(_NAMES).to_pylist() if named else [None] * len(texts)
        for number, (raw, name) in enumerate(zip(texts, names, strict=True), first):
            yield number, raw or b"", str(number if name is None else name)
