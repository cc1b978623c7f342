"""The rows of a file as parts, read once and in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.inference.parts.part import Named, OnError, Part, is_bad
from bertsmith.tasks.reading.bad_rows import BadRow, refusal
from bertsmith.tasks.reading.files import name_of
from bertsmith.tasks.reading.records import Columns, RowReader, read_rows


class _Enough(Exception):
    """Ends the reading at a bad row."""


def parts_of(
    source: str | Path, columns: Columns, reader: type[RowReader], part_rows: int, on_error: OnError
) -> Iterator[Part]:
    """The rows of a file in parts of `part_rows`, the last of what is left; with "stop" nothing behind a row that
    cannot be read.

    Raises BertsmithError for a file that cannot be read or has no rows, and where as many rows as a part has, one after
    the other, cannot be read: then it is the column or the kind of file that is wrong.
    """
    rows: list[Named | BadRow] = []
    names: tuple[str, ...] = ()
    number = 0

    def keep(error: BertsmithError, row: Any) -> None:
        rows.append((error, row))
        if on_error == "stop":
            raise _Enough
        if len(rows) >= part_rows and all(is_bad(each) for each in rows[-part_rows:]):
            bad = [each for each in rows[-part_rows:] if is_bad(each)]
            raise refusal(bad, 0, name_of(source), error.fix or "name a file of another kind")

    try:
        for where, row in read_rows(source, columns, reader=reader, report=keep):
            names = names or tuple(row)
            rows.append((where, row))
            while len(rows) >= part_rows:
                yield Part(number, number * part_rows, rows[:part_rows], names)
                del rows[:part_rows]
                number += 1
    except _Enough:
        pass
    if rows:
        yield Part(number, number * part_rows, rows, names)
    elif not number:
        raise BertsmithError("no rows found", name_of(source), "give a file with at least one row behind the header")
