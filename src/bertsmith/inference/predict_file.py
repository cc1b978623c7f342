"""Predictions for the rows of a file, in the same order, into a file."""

from __future__ import annotations

import csv
import io
import itertools
import json
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import Progress, say
from bertsmith.inference.predictor import TRUNCATED, Prediction, Predictor
from bertsmith.tasks.reading.records import Columns, Row, has_lone_surrogate, read_rows

ROWS_AT_ONCE = 16_384
_Formatter = Callable[[str, Row, Prediction], str]
_Named = tuple[str, Row | str]
T = TypeVar("T")


@dataclass
class Predicted:
    """How many rows were predicted, and how many of them the model read in part; truncated_tokens: what it did not."""

    rows: int = 0
    truncated_rows: int = 0
    truncated_tokens: int = 0

    def add(self, prediction: Prediction) -> None:
        """Counts a row."""
        lost = prediction[TRUNCATED]
        self.rows += 1
        self.truncated_rows += lost > 0
        self.truncated_tokens += lost


def predict_file(
    model: str | Path | Predictor,
    source: str | Path,
    out: str | Path,
    *,
    device: str = "auto",
    precision: str = "auto",
    columns: Columns | Mapping[str, Any] | None = None,
) -> Predicted:
    """Predicts every row of a csv, tsv, jsonl or parquet file, in bounded memory.

    source "-" is standard input, whose rows are answered as they come. out: jsonl, where each line is the row with its
    "prediction"; csv, where the row has further columns; or "-", jsonl on standard output. columns: of
    `Predictor`. A file is written whole or not at all. Raises BertsmithError for files and rows that cannot be used.
    """
    check_out(out)
    to_csv = Path(out).suffix.lower() == ".csv"
    predictor = (
        model if isinstance(model, Predictor) else Predictor(model, device, precision=precision, columns=columns)
    )
    form = _csv_formatter(predictor) if to_csv else _json_line
    done = Predicted()
    with Progress("predicting", None, "row") as progress:
        chunks = _lines(predictor, source, form, progress, done)
        if str(out) == "-":
            for lines in chunks:
                sys.stdout.writelines(lines)
                sys.stdout.flush()
        else:
            files.write_whole(
                Path(out), lambda file: file.writelines(line.encode() for lines in chunks for line in lines)
            )
    cut = f"; {done.truncated_rows:,} of them truncated, {done.truncated_tokens:,} tokens not read"
    say(f"{done.rows:,} rows predicted" + (cut if done.truncated_rows else ""))
    return done


def check_out(out: str | Path) -> None:
    """Raises BertsmithError for a kind of file that is not written here."""
    suffix = Path(out).suffix.lower()
    if str(out) != "-" and suffix not in (".csv", ".jsonl"):
        raise BertsmithError(f"'{suffix}' is not a kind of file that is written here", out, "use jsonl or csv")


def _lines(
    predictor: Predictor, source: str | Path, form: _Formatter, progress: Progress, done: Predicted
) -> Iterator[list[str]]:
    rows = read_rows(source, predictor.columns, reader=predictor.reader)
    streams = str(source) == "-"
    for chunk in _as_they_come(rows, ROWS_AT_ONCE) if streams else chunks_of(rows, ROWS_AT_ONCE):
        answered: Iterable[list[str]]
        try:
            answered = [_answered(predictor, chunk, form, done)]
        except BertsmithError:
            if not streams:
                raise
            answered = (_answered(predictor, [each], form, done) for each in chunk)  # those before the bad row
        yield from answered
        progress.advance(len(chunk))


def _answered(predictor: Predictor, rows: list[_Named], form: _Formatter, done: Predicted) -> list[str]:
    lines = []
    predictions = predictor.predict(rows)
    for (where, row), prediction in zip(rows, predictions, strict=True):
        assert not isinstance(row, str)
        line = form(where, row, prediction)
        if has_lone_surrogate(line):
            what = "a column of this row holds half of a surrogate pair, which cannot be written"
            raise BertsmithError(what, where, "correct or remove this row")
        lines.append(line)
    for prediction in predictions:
        done.add(prediction)
    return lines


def chunks_of(items: Iterable[T], most: int) -> Iterator[list[T]]:
    """The items in lists of `most`, the last of what is left."""
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, most)):
        yield chunk


def _as_they_come(items: Iterable[T], most: int) -> Iterator[list[T]]:
    """The items in chunks of all that have come so far, one at least: who types a row gets its answer at once, and a
    long file is answered in large chunks."""
    ready: queue.Queue[T | BaseException | None] = queue.Queue(maxsize=2 * most)

    def read() -> None:
        try:
            for item in items:
                ready.put(item)
            ready.put(None)
        except BaseException as error:  # raised where the rows are used
            ready.put(error)

    threading.Thread(target=read, daemon=True).start()
    while True:
        chunk: list[T] = []
        end = ready.get()
        while end is not None and not isinstance(end, BaseException):
            chunk.append(end)
            if len(chunk) == most or ready.empty():
                break
            end = ready.get()
        if chunk:
            yield chunk
        if end is None:
            return
        if isinstance(end, BaseException):
            raise end


def _json_line(where: str, row: Row, prediction: Prediction) -> str:
    if "prediction" in row:
        raise BertsmithError("this row has a column 'prediction' already", where, "rename that column")
    return json.dumps({**row, "prediction": prediction}, ensure_ascii=False) + "\n"


def _csv_formatter(predictor: Predictor) -> _Formatter:
    """Puts a header, from the first row's columns, before the first line."""
    names: list[str] = []

    def form(where: str, row: Row, prediction: Prediction) -> str:
        cells = predictor.cells(prediction)
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        if not names:
            if taken := sorted(cells.keys() & row.keys()):
                raise BertsmithError(f"this file has a column '{taken[0]}' already", where, "rename that column")
            names.extend(row)
            writer.writerow([*names, *cells])
        if set(row) != set(names):
            raise BertsmithError("this row has other columns than the first one", where, "write to a .jsonl file")
        writer.writerow([*(row[name] for name in names), *cells.values()])
        return text.getvalue()

    return form
