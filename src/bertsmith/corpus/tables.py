"""Rows of csv and tsv files as documents, read by Python's csv module; their first row names the fields.

A quoted cell may hold line breaks, so where a row starts is known only to one who has read all that stands before: the
edges of a large file's slices are found by one reading beforehand (`row_edges`). Where nothing is quoted, a line is a
row, and the file is cut like any other file of lines.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from bertsmith.base.log import size
from bertsmith.corpus.account import Account
from bertsmith.corpus.documents import Document, ReadOptions
from bertsmith.corpus.lines import LONGEST_LINE, Slice, decode, lines_of
from bertsmith.corpus.rows import drop_row

# A longer row is dropped: one row must fit into a worker's memory several times over.
LONGEST_ROW = LONGEST_LINE
_QUOTE = '"'


class _RowTooLongError(Exception):
    """A row passed LONGEST_ROW; the feed stands behind it."""


class _Feed:
    """Gives a csv reader the lines of one row after the other, and remembers those of the present row.

    row: (byte, line). unfinished: whether the file ended while the reader asked for more of the row, in an open quote.
    """

    def __init__(self, lines: Iterator[tuple[int, bytes]], cells: str) -> None:
        self._lines = lines
        self._quotes = len(cells) > 1
        self._again: list[tuple[int, bytes]] = []
        self.row: list[tuple[int, bytes]] = []
        self.row_bytes = 0
        self.unfinished = False

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        try:
            begin, line = self._again.pop() if self._again else next(self._lines)
        except StopIteration:
            self.unfinished = bool(self.row)
            raise
        self.row.append((begin, line))
        self.row_bytes += len(line)
        if self.row_bytes > LONGEST_ROW or (len(line) == LONGEST_ROW and not line.endswith(b"\n")):
            self._pass_over()
            raise _RowTooLongError
        return line.decode(errors="surrogateescape")

    def _pass_over(self) -> None:
        """Goes on to the end of the row: to the line end at which all quotes are closed."""
        quotes = sum(line.count(b'"') for _, line in self.row)
        last = self.row[-1][1]
        while not last.endswith(b"\n") or (self._quotes and quotes % 2):
            _, last = self._again.pop() if self._again else next(self._lines, (0, b""))
            if not last:
                break
            quotes += last.count(b'"')
            self.row_bytes += len(last)

    def next_row(self) -> None:
        """Forgets the present row."""
        self.row, self.row_bytes, self.unfinished = [], 0, False

    def back_to_second_line(self) -> int:
        """Will give the present row's lines once more, but the first, whose bytes are returned."""
        self._again = self.row[:0:-1] + self._again
        return len(self.row[0][1])


def _reader(lines: Iterator[str], cells: str) -> Any:
    csv.field_size_limit(LONGEST_ROW)  # no row is longer, and the default of 128 kB is too short for a document
    if len(cells) > 1:
        return csv.reader(lines, delimiter=cells[0], quotechar=cells[1])
    return csv.reader(lines, delimiter=cells, quoting=csv.QUOTE_NONE)


def _rows(part: Slice, options: ReadOptions, account: Account) -> Iterator[tuple[list[tuple[int, bytes]], list[str]]]:
    """(its lines, its cells) of each row that can be read; others are dropped as documents of their own bytes."""
    is_start = None if len(part.cells) > 1 else any_line
    feed = _Feed(lines_of(part, is_start, account, options.strict, cut=False), part.cells)
    reader = _reader(feed, part.cells)
    while True:
        feed.next_row()
        fault = ""
        try:
            row = next(reader)
        except StopIteration:
            return
        except _RowTooLongError:
            fault, dropped = f"rows longer than {size(LONGEST_ROW)}", feed.row_bytes
        except csv.Error as error:
            fault, dropped = f"rows that are not csv ({error})", feed.row_bytes
        if feed.unfinished:
            where = feed.row[0][0]
            fault, dropped = "rows with a quote that is never closed", feed.back_to_second_line()
            drop_row(fault, dropped, f"{part.name}, byte {where:,}", options, account)
        elif fault:
            drop_row(fault, dropped, f"{part.name}, byte {feed.row[0][0]:,}", options, account)
        elif row:
            yield feed.row, row


def read_table(part: Slice, options: ReadOptions, account: Account) -> Iterator[Document]:
    """The documents of a table's rows. Rows with another number of cells than the header are dropped and counted."""
    header = header_of(part)
    place = header.index(options.text_field)
    names = header.index("id") if "id" in header and options.text_field != "id" else None
    rows = _rows(part, options, account)
    if part.begin == 0:
        next(rows, None)
    for lines, cells in rows:
        begin = lines[0][0]
        if len(cells) != len(header):
            total = sum(len(line) for _, line in lines)
            fault = "rows with another number of cells than the header"
            drop_row(fault, total, f"{part.name}, byte {begin:,}", options, account)
            continue
        text = _sound(cells[place], lines, part, options, account)
        name = _sound(cells[names], [], part, options, account) if names is not None else begin
        yield Document(f"{part.name}@{name}", text)


def _sound(cell: str, lines: list[tuple[int, bytes]], part: Slice, options: ReadOptions, account: Account) -> str:
    """A cell in which bytes that are not UTF-8 stand as surrogates: replaced, and counted where `lines` are given."""
    if cell.isascii():
        return cell
    raw = cell.encode(errors="surrogateescape")
    try:
        return raw.decode()
    except UnicodeDecodeError:
        for begin, line in lines:
            decode(line, part.name, begin, account, options.strict)
        return raw.decode(errors="replace")


def header_of(part: Slice) -> list[str]:
    """The names of a table's fields, from its first row."""
    start = Slice(part.path, part.name, part.kind, part.codec, 0, None, part.encoding, part.cells)
    _, header = next(_rows(start, ReadOptions(), Account()), ([], []))
    return [name.strip() for name in header]


def row_edges(part: Slice, part_bytes: int) -> list[int]:
    """Bytes at which rows of a table start, each at least `part_bytes` after the one before."""
    edges, last = list[int](), 0
    for lines, _ in _rows(part, ReadOptions(), Account()):
        if lines[0][0] - last >= part_bytes:
            last = lines[0][0]
            edges.append(last)
    return edges


def cells_of(head: bytes, whole: bool, delimiters: str) -> tuple[str, list[list[str]]]:
    """(what parts and quotes the cells, first rows) as fit the beginning of a file best; ("", []) where nothing does.

    Of a dialect the rows count that have as many cells as the header. Cells between tabs are quoted only where that
    fits better than taking quotes for text, or where every cell that a quote begins is one that a quote ends.
    """
    text = head.decode(errors="surrogateescape")
    best: tuple[tuple[bool, int, bool], str, list[list[str]]] | None = None
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
        natural = (len(cells) > 1) == (cells[0] != "\t" or _all_quoted(text, cells[0]))
        if best is None or best[0] < (len(rows[0]) > 1, agree, natural):
            best = ((len(rows[0]) > 1, agree, natural), cells, rows)
    return (best[1], best[2]) if best else ("", [])


def _all_quoted(text: str, delimiter: str) -> bool:
    cells = [cell for line in text.splitlines() for cell in line.split(delimiter) if cell.startswith(_QUOTE)]
    return bool(cells) and all(len(cell) > 1 and cell.endswith(_QUOTE) for cell in cells)


def any_line(line: bytes, before: bytes) -> bool:
    """Where any line may start a document."""
    return True
