"""Predictions for the rows of a file, in the same order, into a file."""

from __future__ import annotations

import csv
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import Progress, say
from bertsmith.inference.predictor import Prediction, Predictor
from bertsmith.tasks.records import Row, has_lone_surrogate, read_rows

_ROWS_AT_ONCE = 16_384
_Formatter = Callable[[str, Row, Prediction], str]


def predict_file(
    model: str | Path | Predictor, source: str | Path, out: str | Path, *, device: str = "auto", precision: str = "auto"
) -> int:
    """Predicts every row of a csv, tsv or jsonl file, in bounded memory. Returns the number of rows.

    source "-" is standard input. out: jsonl, where each line is the row with its "prediction"; csv, where the row has
    further columns; or "-", jsonl on standard output. A file is written whole or not at all. Raises BertsmithError for
    files and rows that cannot be used.
    """
    to_csv = Path(out).suffix.lower() == ".csv"
    if str(out) != "-" and Path(out).suffix.lower() not in (".csv", ".jsonl"):
        raise BertsmithError(
            f"'{Path(out).suffix}' is not a kind of file that is written here", out, "use jsonl or csv"
        )
    predictor = model if isinstance(model, Predictor) else Predictor(model, device, precision=precision)
    form = _csv_formatter(predictor) if to_csv else _json_line
    with Progress("predicting", None, "row") as progress:
        lines = _lines(predictor, source, form, progress)
        if str(out) == "-":
            sys.stdout.writelines(lines)
            sys.stdout.flush()
        else:
            files.write_whole(Path(out), lambda file: file.writelines(line.encode() for line in lines))
        say(f"{progress.done:,} rows predicted")
        return progress.done


def _lines(predictor: Predictor, source: str | Path, form: _Formatter, progress: Progress) -> Iterator[str]:
    rows = read_rows(source, predictor.columns)
    while chunk := list(itertools.islice(rows, _ROWS_AT_ONCE)):
        for (where, row), prediction in zip(chunk, predictor.predict(chunk), strict=True):
            assert not isinstance(row, str)
            line = form(where, row, prediction)
            if has_lone_surrogate(line):
                raise BertsmithError(
                    "a column of this row holds half of a surrogate pair, which cannot be written",
                    where,
                    "mend or remove this row",
                )
            yield line
        progress.advance(len(chunk))


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
