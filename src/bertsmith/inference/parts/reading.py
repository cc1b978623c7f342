"""The rows of a file as parts, read once and in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import disk_errors
from bertsmith.inference.parts.part import Named, OnError, Part, is_bad
from bertsmith.tasks.reading.bad_rows import BadRow, refusal
from bertsmith.tasks.reading.files import name_of
from bertsmith.tasks.reading.records import Columns, RowReader, no_rows, read_rows

_json = json.JSONEncoder(ensure_ascii=False, default=str).encode
PART_CHARACTERS = 1_000_000
"""A part ends with the row that brings it to so many, where it has not as many rows as a part may have: some 250,000
tokens, for which BERT-base takes minutes on two cores. What a part takes of memory, and of work that is lost at a stop,
has a bound by it, also where long texts are read in windows."""


class _Enough(Exception):
    """Ends the reading at a bad row."""


def parts_of(
    source: str | Path, columns: Columns, reader: type[RowReader], part_rows: int, on_error: OnError
) -> Iterator[Part]:
    """The rows of a file in parts of `part_rows`, or fewer where they are long (`PART_CHARACTERS`), the last of what is
    left; with "stop" nothing behind a row that cannot be read.

    Raises BertsmithError for a file that cannot be read or has no rows, and where `part_rows` rows, one after the
    other, cannot be read: then it is the column or the kind of file that is wrong.
    """
    rows: list[Named | BadRow] = []
    names: tuple[str, ...] = ()
    number = first = size = 0
    for row in _in_order(source, columns, reader, part_rows, on_error):
        if not names and not is_bad(row):
            names = tuple(row[1])
        rows.append(row)
        size += characters(row)
        if len(rows) == part_rows or size >= PART_CHARACTERS:
            yield Part(number, first, rows, names)
            number, first, rows, size = number + 1, first + len(rows), [], 0
    if rows:
        yield Part(number, first, rows, names)
    elif not number:
        raise no_rows(name_of(source))


def _in_order(
    source: str | Path, columns: Columns, reader: type[RowReader], most_bad: int, on_error: OnError
) -> Iterator[Named | BadRow]:
    """All rows, those that cannot be read too. Raises BertsmithError for `most_bad` of these one after the other.

    Bad ones wait for the good one behind them, each with up to 32 MiB: those that a part would not hold, on the disk.
    """
    errors: list[tuple[BertsmithError, bool, int]] = []  # with whether the row is bytes, and how many stand for it
    with SpooledTemporaryFile(PART_CHARACTERS) as waiting:

        def keep(error: BertsmithError, row: Any) -> None:
            raw = row if isinstance(row, bytes) else _json(row).encode(errors="surrogatepass")
            errors.append((error, row is raw, len(raw)))
            if len(errors) == most_bad and on_error == "skip":
                bad = [(each, None) for each, *_ in errors]
                raise refusal(bad, 0, name_of(source), error.fix or "name a file of another kind")
            with disk_errors(Path(gettempdir())):
                waiting.write(raw)
            if on_error == "stop":
                raise _Enough

        def waited() -> Iterator[BadRow]:
            waiting.seek(0)
            for error, is_raw, length in errors:
                raw = waiting.read(length)
                yield error, raw if is_raw else json.loads(raw.decode(errors="surrogatepass"))
            errors.clear()
            waiting.seek(0)
            waiting.truncate()

        try:
            for named in read_rows(source, columns, reader=reader, report=keep):
                if errors:
                    yield from waited()
                yield named
        except _Enough:
            pass
        yield from waited()


def characters(row: Named | BadRow) -> int:
    """How long a row is as JSON, with all of its cells; in bytes where it could not be taken apart."""
    _, cells = row
    return len(cells if isinstance(cells, bytes | str) else _json(cells))
