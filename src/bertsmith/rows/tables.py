"""Rows of csv and tsv files, read by Python's csv module.

A quoted cell may hold line breaks, so where a row starts is known only after reading all that stands before it: the
edges of a large file's slices are found by one reading beforehand. Where nothing is quoted, a line is a row, and the
file is cut like any other file of lines. Before the rows may stand Excel's line that names the separator, such as
"sep=;", which is not a row.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from bertsmith.base.log import size
from bertsmith.rows.encodings import UTF8_MARK
from bertsmith.rows.lines import LONGEST_LINE
from bertsmith.rows.row import Row

# A longer row is a fault: one row must fit into a worker's memory several times over.
LONGEST_ROW = LONGEST_LINE
QUOTE = '"'
RETURN = "rows with a carriage return in a cell that is not quoted"
OPEN_QUOTE = "rows with a quote that is never closed"
_QUOTED = re.compile('"(?:[^"]|"")*"')
_LINE_ENDS = (b"\n", b"\r")
_SEPARATOR_LINE = re.compile(rb'\A"?sep=([^"\r\n])"?(?:\r\n?|\n|$)', re.IGNORECASE)


class _RowTooLongError(Exception):
    """A row is longer than LONGEST_ROW; the feed is at the row after it."""


class _Feed:
    """Gives a csv reader the lines of one row after the other, and keeps the present row.

    begin, line, row: its first byte, its first line and its bytes so far. size_bytes: of the row, with what was
    skipped. unfinished: whether the file ended while the reader wanted more of the row, in an open quote.
    """

    def __init__(self, lines: Iterable[tuple[int, bytes]], cells: str) -> None:
        self._lines = iter(lines)
        begin, line = next(self._lines, (0, b""))
        # Of a slice from the middle of a file the first line is a row.
        skipped = begin <= len(UTF8_MARK) and bool(named_separator(line))
        self._again = iter([(begin, line)] if line and not skipped else [])
        self._quotes = len(cells) > 1
        self._lines_read = int(skipped)
        self.next_row()

    def next_row(self) -> None:
        """Forgets the present row."""
        self.begin, self.line, self.row, self.size_bytes = -1, 0, bytearray(), 0
        self.unfinished, self.is_utf8 = False, True

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> str:
        begin, line = self._line()
        if not line:
            self.unfinished = bool(self.row)
            raise StopIteration
        if not self.row:
            self.begin, self.line = begin, self._lines_read + 1
        self._lines_read += line.endswith(_LINE_ENDS)
        self.row += line
        self.size_bytes += len(line)
        if self.size_bytes > LONGEST_ROW or (len(line) == LONGEST_ROW and not line.endswith(b"\n")):
            self._pass_over(line)
            raise _RowTooLongError
        try:
            return line.decode()
        except UnicodeDecodeError:
            self.is_utf8 = False
            return line.decode(errors="surrogateescape")

    def _line(self) -> tuple[int, bytes]:
        return next(self._again, None) or next(self._lines, (0, b""))

    def _pass_over(self, line: bytes) -> None:
        """Skips to the end of the row: to the line end at which all quotes are closed."""
        quotes = self.row.count(b'"')
        while line and (not line.endswith(b"\n") or (self._quotes and quotes % 2)):
            _, line = self._line()
            self._lines_read += line.endswith(_LINE_ENDS)
            quotes += line.count(b'"')
            self.size_bytes += len(line)

    def back_to_second_line(self) -> int:
        """Will give the present row, which the end of the file cut off, once more without its first line.

        Returns the bytes of that line.
        """
        lines = io.BytesIO(bytes(self.row))
        first = len(lines.readline())
        begins = self.begin
        self._lines_read = self.line

        def again() -> Iterator[tuple[int, bytes]]:
            position = begins + first
            for line in lines:
                yield position, line
                position += len(line)

        self._again = again()
        return first


def named_separator(head: bytes) -> str:
    """What the first line says separates the cells, such as "sep=;", which Excel takes; "" where it is another line."""
    found = _SEPARATOR_LINE.match(head.removeprefix(UTF8_MARK))
    return found[1].decode(errors="surrogateescape") if found else ""


def _reader(lines: Iterator[str], cells: str, strict: bool = False) -> Any:
    csv.field_size_limit(LONGEST_ROW)  # no row is longer, and the default of 128 kB is too short for a document
    if len(cells) > 1:
        return csv.reader(lines, delimiter=cells[0], quotechar=cells[1], strict=strict)
    return csv.reader(lines, delimiter=cells, quoting=csv.QUOTE_NONE)


def table_rows(
    lines: Iterable[tuple[int, bytes]], cells: str, strict: bool = False, blank: bool = False
) -> Iterator[Row[list[str]]]:
    """The rows of lines with the byte that each begins at, but for a line as `named_separator` reads at the beginning
    of the file. blank: a blank line is a row without cells; otherwise it is not given.

    cells: what separates the cells, followed by what quotes them where they may be quoted. strict: text behind a
    closing quote is a fault. A quote that is never closed costs its line alone. Bytes that are not UTF-8 stand in the
    cells as surrogate escapes.
    """
    feed = _Feed(lines, cells)
    reader = _reader(feed, cells, strict)
    while True:
        feed.next_row()
        fault, row = "", None
        try:
            row = next(reader)
        except StopIteration:
            return
        except _RowTooLongError:
            fault = f"rows longer than {size(LONGEST_ROW)}"
        except csv.Error as error:
            fault = RETURN if "new-line character" in str(error) else f"rows that are not csv ({error})"
        line, size_bytes = feed.line, feed.size_bytes
        if feed.unfinished:
            fault, size_bytes = OPEN_QUOTE, feed.back_to_second_line()
        if fault or row or blank:
            yield Row(feed.begin, line, bytes(feed.row), size_bytes, None if fault else row, fault, "", feed.is_utf8)


def cells_of(head: bytes, whole: bool, choices: Sequence[str]) -> tuple[str, list[list[str]]]:
    """(what separates and quotes the cells, first rows) as fit the beginning of a file best; ("", []) where none does.

    whole: whether that is the whole file. choices: of `cells`; of equals the first is taken, and where the first line
    names a separator, those with it alone. What fits has several cells, and as many in every row as in the header;
    where that holds with quotes and without, quotes between tabs are text, unless they are written as csv writes them.
    """
    if named := named_separator(head):
        head = _SEPARATOR_LINE.sub(b"", head.removeprefix(UTF8_MARK))
        choices = [cells for cells in choices if cells[0] == named] or [named + QUOTE]
    text = head.decode(errors="surrogateescape")
    best, best_rank = ("", list[list[str]]()), (False, False, False, -1)
    for cells in choices:
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
        natural = (len(cells) > 1) == (cells[0] != "\t" or are_quoted(text, cells[0]))
        rank = (len(rows[0]) > 1, fits, natural, agree)
        if best_rank < rank:
            best, best_rank = (cells, rows), rank
    return best


def are_quoted(text: str, delimiter: str) -> bool:
    """Whether quotes look as csv writes them: around every name in the header, or only around cells that need them.

    Such a cell holds a quote, doubled; a cell that a quote only begins, or that is quoted without need, is text.
    """
    rows = [line.split(delimiter) for line in text.splitlines()]
    if rows and all(_QUOTED.fullmatch(cell) for cell in rows[0]):
        return True
    quoted = [cell for row in rows for cell in row if cell.startswith(QUOTE)]
    return bool(quoted) and all('""' in cell[1:-1] and _QUOTED.fullmatch(cell) for cell in quoted)
