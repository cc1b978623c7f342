"""Predictions for the rows of a file, in the same order, into a file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from bertsmith.base import fp32_products
from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import StrPath
from bertsmith.base.log import counted, say
from bertsmith.inference.parts.folder import joined_lines
from bertsmith.inference.parts.part import (
    Account,
    Named,
    Part,
    PartWork,
    TakenColumn,
    check_line,
    empty_rows,
    is_finite,
    json_text,
    lines,
)
from bertsmith.inference.parts.run import Job, RowOptions, answer_rows, usable_options
from bertsmith.inference.parts.workers import Load
from bertsmith.inference.predictor import TRUNCATED, Prediction, Predictor, load_predictor
from bertsmith.tasks.reading.bad_rows import Report
from bertsmith.tasks.reading.records import Row
from bertsmith.weights.huggingface import model_folder

PREDICTION = "prediction"


@fp32_products.kept()
def predict_file(
    model: StrPath | Predictor,
    source: str | Path,
    out: str | Path,
    *,
    rows: RowOptions | None = None,
    **loading: Any,
) -> Account:
    """Predicts every row of a csv, tsv, jsonl, parquet, SQuAD or CoNLL file, in bounded memory.

    source "-" is standard input, whose rows are answered as they come. out: jsonl, where each line is the row with its
    "prediction"; csv, where the row has further columns; or "-", jsonl on standard output. A file is written whole or
    not at all. loading: of `load_predictor`, such as `device`, where `model` is none yet. Raises BertsmithError for
    files and rows that cannot be used.
    """
    rows = usable_options(source, out, rows)
    _check_out(out)
    to_csv = Path(out).suffix.lower() == ".csv"
    load: Load
    if isinstance(model, Predictor):
        rows.check_loaded(loading)
        work = PredictWork(model, to_csv)
        folder, load = model.folder, lambda device: work
    else:
        rows.check_loading(loading)
        folder, load = model_folder(model), partial(_loaded, model, loading, to_csv)
    job = Job(load, folder, loading.get("device", "auto"), joined_lines, "predicting")
    done = answer_rows(job, source, out, rows)
    say(f"{counted(done.rows, 'row')} predicted{done.shortfall('row')}")
    return done


def _check_out(out: str | Path) -> None:
    """Raises BertsmithError for a kind of file that is not written here."""
    suffix = Path(out).suffix.lower()
    if str(out) != "-" and suffix not in (".csv", ".jsonl"):
        raise BertsmithError("predictions are written as jsonl or csv", out, "end the name in .jsonl or .csv")


def _loaded(model: StrPath, loading: Mapping[str, Any], to_csv: bool, device: str) -> PartWork:
    return PredictWork(load_predictor(model, **{**loading, "device": device}), to_csv)


class PredictWork(PartWork):
    """Predictions as lines of JSON, or of a csv file."""

    def __init__(self, predictor: Predictor, to_csv: bool) -> None:
        self.columns, self.reader = predictor.columns, predictor.reader
        self.facts = {**predictor.facts, "kind": predictor.kind, "columns": asdict(predictor.columns)}
        self._predictor, self._to_csv = predictor, to_csv

    def usable(self, where: str, row: Row | str) -> None:
        self._predictor.record(where, row)
        if not self._to_csv and PREDICTION in row:
            fix = "rename or remove that column, or write to a .csv file, whose further columns have other names"
            raise TakenColumn(f"this row has a column '{PREDICTION}' already", where, fix)

    def answered(self, rows: list[Named], part: Part, account: Account, report: Report) -> bytes:
        predictions, sequences = self._predictor.predict(rows)
        empty = empty_rows(rows, sequences, self._predictor.tokenizer)
        form = _Csv(self._predictor, part.names, account) if self._to_csv else _json_line
        written = []
        for where, prediction, line in lines(rows, predictions, form, report):
            account.read(where, prediction[TRUNCATED], empty)
            written.append(line)
        return "".join(written).encode()


def _check_answer(where: str, prediction: Prediction) -> None:
    """Raises BertsmithError for one with a number that is not finite."""
    if not is_finite(prediction):
        what = "the model's answer to this row holds a number that is not finite (NaN or infinity)"
        raise BertsmithError(what, where, "use --precision fp32, or remove this row")


def _json_line(where: str, row: Row, prediction: Prediction) -> str:
    _check_answer(where, prediction)
    return json_text(where, {**row, PREDICTION: prediction}) + "\n"


class _Csv:
    """Lines of a csv file. names: the columns of the file's first row. The account gets the header."""

    def __init__(self, predictor: Predictor, names: tuple[str, ...], account: Account) -> None:
        self._predictor, self._names, self._account = predictor, names, account

    def __call__(self, where: str, row: Row, prediction: Prediction) -> str:
        _check_answer(where, prediction)
        cells = self._predictor.cells(prediction)
        if taken := sorted(cells.keys() & set(self._names)):
            raise TakenColumn(f"this file has a column '{taken[0]}' already", where, "rename that column")
        header = _csv_line([*self._names, *cells])
        if set(row) != set(self._names) or (self._account.header and header != self._account.header):
            raise BertsmithError("this row has other columns than the first one", where, "write to a .jsonl file")
        if not self._account.header:
            check_line(where, header, row)
            self._account.header = header
        values = [*(row[name] for name in self._names), *cells.values()]
        return _csv_line([_cell(where, value) for value in values])


def _cell(where: str, value: Any) -> Any:
    """A value as a cell of a table: what is no text or number stands there as JSON, and nothing as an empty cell."""
    return json_text(where, value) if isinstance(value, list | dict | bool) else value


def _csv_line(cells: list[Any]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\r\n").writerow(cells)  # cells with either of these are then quoted
    return text.getvalue().removesuffix("\r\n") + "\n"
