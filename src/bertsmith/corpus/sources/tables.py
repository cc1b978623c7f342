"""Rows of csv and tsv files as documents, read by Python's csv module; their first row names the fields.

A quoted cell may hold line breaks, so where a row starts is known only to one who has read all that stands before: the
edges of a large file's slices are found by one reading beforehand (`row_edges`). Where nothing is quoted, a line is a
row, and the file is cut like any other file of lines.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bertsmith.base.log import size
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import Document, ReadOptions
from bertsmith.corpus.lines import LONGEST_LINE, Slice, decode, lines_of
from bertsmith.corpus.sources.rows import drop_row

# A longer row is dropped: one row must fit into a worker's memory several times over.
LONGEST_ROW = LONGEST_LINE
_QUOTE = '"'
_QUOTED = re.compile('"(?:[^"]|"")*"')
_SURROGATES = re.compile("[\ud800-\udfff]")


class _RowTooLongError(Exception):
    """A row passed LONGEST_ROW; the feed stands behind it."""


class _Feed:
    """Gives a csv reader the lines of one row after the other, and keeps the present row.

    begin, row: its first byte and its bytes so far. size_bytes: of the row, with what was passed over. unfinished:
    whether the file ended while the reader asked for more of the row, in an open quote.
    """

    def __init__(self, lines: Iterator[tuple[int, bytes]], cells: str) -> None:
        self._lines, self._again = lines, iter(list[tuple[int, bytes]]())
        self._quotes = len(cells) > 1
        self.next_row()

    def next_row(self) -> None:
        """Forgets the present row."""
        self.begin, self.row, self.size_bytes, self.unfinished = -1, bytearray(), 0, False

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        begin, line = self._line()
        if not line:
            self.unfinished = bool(self.row)
            raise StopIteration
        if not self.row:
            self.begin = begin
        self.row += line
        self.size_bytes += len(line)
        if self.size_bytes > LONGEST_ROW or (len(line) == LONGEST_ROW and not line.endswith(b"\n")):
            self._pass_over(line)
            raise _RowTooLongError
        return line.decode(errors="surrogateescape")

    def _line(self) -> tuple[int, bytes]:
        return next(self._again, None) or next(self._lines, (0, b""))

    def _pass_over(self, line: bytes) -> None:
        """Goes on to the end of the row: to the line end at which all quotes are closed."""
        quotes = self.row.count(b'"')
        while line and (not line.endswith(b"\n") or (self._quotes and quotes % 2)):
            _, line = self._line()
            quotes += line.count(b'"')
            self.size_bytes += len(line)

    def back_to_second_line(self) -> int:
        """Will give the present row, which the end of the file cut off, once more without its first line.

        Returns the bytes of that line.
        """
        lines = io.BytesIO(bytes(self.row))
        first = len(lines.readline())
        begins = self.begin

        def again() -> Iterator[tuple[int, bytes]]:
            position = begins + first
            for line in lines:
                yield position, line
                position += len(line)

        self._again = again()
        return first


def _reader(lines: Iterator[str], cells: str) -> Any:
    csv.field_size_limit(LONGEST_ROW)  # no row is longer, and the default of 128 kB is too short for a document
    if len(cells) > 1:
        return csv.reader(lines, delimiter=cells[0], quotechar=cells[1])
    return csv.reader(lines, delimiter=cells, quoting=csv.QUOTE_NONE)


def _rows(part: Slice, options: ReadOptions, account: Account) -> Iterator[tuple[int, bytes, list[str]]]:
    """(first byte, bytes, cells) of each row that can be read; others are dropped as documents of their own bytes."""
    is_start = None if len(part.cells) > 1 else any_line
    feed = _Feed(lines_of(part, is_start, account, options.strict, cut=False), part.cells)
    reader = _reader(feed, part.cells)
    while True:
        feed.next_row()
        fault, row = "", []
        try:
            row = next(reader)
        except StopIteration:
            return
        except _RowTooLongError:
            fault = f"rows longer than {size(LONGEST_ROW)}"
        except csv.Error as error:
            fault = f"rows that are not csv ({error})"
        dropped = feed.size_bytes
        if feed.unfinished:
            fault, dropped = "rows with a quote that is never closed", feed.back_to_second_line()
        if fault:
            drop_row(fault, dropped, f"{part.name}, byte {feed.begin:,}", options, account)
        elif row:
            yield feed.begin, bytes(feed.row), row


def read_table(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    """The documents of a table's rows. Rows with another number of cells than the header are dropped and counted."""
    header = header_of(part)
    place = header.index(options.text_field)
    names = header.index("id") if "id" in header and options.text_field != "id" else None
    rows = _rows(part, options, account)
    if part.begin == 0:
        next(rows, None)
    for begin, raw, cells in rows:
        if len(cells) != len(header):
            fault = "rows with another number of cells than the header"
            drop_row(fault, len(raw), f"{part.name}, byte {begin:,}", options, account)
            continue
        text = cells[place]
        if not text.isascii() and _SURROGATES.search(text):
            decode(raw, part.name, begin, account, options.strict)  # counts them, where they stand
            text = _replaced(text)
        yield Document(f"{part.name}@{begin if names is None else _replaced(cells[names])}", text)


def _replaced(cell: str) -> str:
    """A cell in which bytes that are not UTF-8 stand as surrogates, with U+FFFD in their places."""
    return cell if cell.isascii() else cell.encode(errors="surrogateescape").decode(errors="replace")


def header_of(part: Slice) -> list[str]:
    """The names of a table's fields, from its first row."""
    start = replace(part, begin=0, end=None)
    _, _, header = next(_rows(start, ReadOptions(), Account()), (0, b"", list[str]()))
    return [name.strip() for name in header]


def row_edges(part: Slice, part_bytes: int) -> list[int]:
    """Bytes at which rows of a table start, each at least `part_bytes` after the one before."""
    edges, last = list[int](), 0
    for begin, _, _ in _rows(part, ReadOptions(), Account()):
        if begin - last >= part_bytes:
            last = begin
            edges.append(last)
    return edges


def cells_of(head: bytes, whole: bool, delimiters: str) -> tuple[str, list[list[str]]]:
    """(what parts and quotes the cells, first rows) as fit the beginning of a file best; ("", []) where nothing does.

    whole: whether that is the whole file. What fits has several cells, and as many in every row as in the header; where
    that holds with quotes and without, quotes between tabs are text, unless they are written as csv writes them.
    """
    text = head.decode(errors="surrogateescape")
    best: tuple[tuple[bool, bool, bool, int], str, list[list[str]]] | None = None
    for cells in [each for delimiter in delimiters for each in (delimiter, delimiter + _QUOTE)]:
        try:
            rows = [row for row in _reader(io.StringIO(text, newline=""), cells) if row]
        except csv.Error:
            continue
        if not whole and len(rows) > 1:
            rows.pop()
        if not rows:
            continue
        agree = sum(len(row) == len(rows[0]) for row in rows)
        fits = agree == len(rows) and (whole or len(rows) > 1)
        natural = (len(cells) > 1) == (cells[0] != "\t" or _is_quoted(text, cells[0]))
        rank = (len(rows[0]) > 1, fits, natural, agree)
        if best is None or best[0] < rank:
            best = (rank, cells, rows)
    return (best[1], best[2]) if best else ("", [])


def _is_quoted(text: str, delimiter: str) -> bool:
    """Whether quotes look as csv writes them: around every name in the header, or only around cells that need them.

    Such a cell holds a quote, doubled; a cell that a quote only begins, or that is quoted without need, is text.
    """
    rows = [line.split(delimiter) for line in text.splitlines()]
    if rows and all(_QUOTED.fullmatch(cell) for cell in rows[0]):
        return True
    quoted = [cell for row in rows for cell in row if cell.startswith(_QUOTE)]
    return bool(quoted) and all('""' in cell[1:-1] and _QUOTED.fullmatch(cell) for cell in quoted)


def any_line(line: bytes, before: bytes) -> bool:
    """Where any line may start a document."""
    return True
