"""Rows answered one chunk after the other, to standard output: those of a pipe as they come."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import Progress, warn
from bertsmith.inference.parts.part import Account, Answered, Named, OnError, Part, PartWork, answer, stop_at
from bertsmith.inference.parts.reading import PART_CHARACTERS, characters, parts_of
from bertsmith.tasks.reading.bad_rows import SHOWN, BadRow, in_words
from bertsmith.tasks.reading.files import is_pipe, name_of
from bertsmith.tasks.reading.records import Columns, RowReader, no_rows, read_rows


def stream(work: PartWork, source: str | Path, part_rows: int, on_error: OnError, progress: Progress) -> Account:
    """Answers rows to standard output, in their order. Those of a pipe are answered as they come: those before a bad
    one too."""
    done = Account()
    piped = is_pipe(source)
    parts = _as_they_come if piped else parts_of
    for part in parts(source, work.columns, work.reader, part_rows, on_error):
        for answered in _one_by_one(work, part, on_error) if piped else [answer(work, part, on_error)]:
            for error, _ in answered.bad[: max(0, SHOWN - done.skipped)]:
                warn(f"left out: {in_words(error)}")
            done.add(answered.account)
            sys.stdout.buffer.write(answered.payload)  # UTF-8, whatever the locale
            sys.stdout.buffer.flush()
        progress.advance(len(part.rows))
    if piped and not done.rows and not done.skipped:
        raise no_rows(name_of(source))
    return done


def _one_by_one(work: PartWork, part: Part, on_error: OnError) -> Iterator[Answered]:
    """The answers of a part at once, or where one of its rows is bad those of the rows before it."""
    try:
        found = [answer(work, part, on_error)]
    except BertsmithError:
        for place, row in enumerate(part.rows, part.first):
            yield answer(work, Part(0, place, [row]), on_error)
        raise
    yield from found


class _Waiting(queue.Queue[tuple[Any, int]]):
    """Rows that nobody has taken yet, with their characters: full, too, where these are as many as a part may have."""

    def _init(self, maxsize: int) -> None:
        super()._init(maxsize)
        self._characters = 0

    def _qsize(self) -> int:
        return self.maxsize if self._characters >= PART_CHARACTERS else super()._qsize()

    def _put(self, item: tuple[Any, int]) -> None:
        super()._put(item)
        self._characters += item[1]

    def _get(self) -> tuple[Any, int]:
        item: tuple[Any, int] = super()._get()
        self._characters -= item[1]
        return item


def _as_they_come(
    source: str | Path, columns: Columns, reader: type[RowReader], most: int, on_error: OnError
) -> Iterator[Part]:
    """The rows of a pipe in parts of all that have come so far, one at least: who types a row gets its answer
    at once, and a long file is answered in large parts."""
    ready = _Waiting(maxsize=2 * most)

    def keep(error: BertsmithError, row: Any) -> None:
        ready.put(((error, row), characters((error, row))))

    def read() -> None:
        try:
            report = stop_at if on_error == "stop" else keep
            for row in read_rows(source, columns, reader=reader, report=report):
                ready.put((row, characters(row)))
            ready.put((None, 0))
        except BaseException as error:  # raised where the rows are used
            ready.put((error, 0))

    threading.Thread(target=read, daemon=True).start()
    first = 0
    while True:
        rows: list[Named | BadRow] = []
        end, size = ready.get()
        while isinstance(end, tuple):
            rows.append(end)
            if len(rows) == most or size >= PART_CHARACTERS or ready.empty():
                break
            end, more = ready.get()
            size += more
        if rows:
            yield Part(0, first, rows)
            first += len(rows)
        if isinstance(end, BaseException):
            raise end
        if end is None:
            return
