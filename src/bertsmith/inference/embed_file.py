"""Vectors for the rows of a file, in the same order, into a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from itertools import starmap
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.base import fp32_products
from bertsmith.base.errors import BertsmithError, check_class
from bertsmith.base.files import StrPath
from bertsmith.base.log import counted, say
from bertsmith.inference.embed import Embedder, VectorOptions, Vectors, record_of, text_columns
from bertsmith.inference.parts.folder import Join, joined_lines
from bertsmith.inference.parts.part import (
    Account,
    Named,
    Part,
    PartWork,
    TakenColumn,
    check_line,
    empty_rows,
    json_text,
    lines,
)
from bertsmith.inference.parts.run import Job, RowOptions, answer_rows, usable_options
from bertsmith.inference.parts.tables import OneSchema, joined_array, joined_tables, table_of
from bertsmith.inference.parts.workers import Load
from bertsmith.inference.predictor import TRUNCATED
from bertsmith.rows.parquet import parquet_library
from bertsmith.tasks.kinds.embed import short_numbers
from bertsmith.tasks.reading.bad_rows import Report, pass_over
from bertsmith.tasks.reading.documents import parsed_once
from bertsmith.tasks.reading.files import is_pipe
from bertsmith.tasks.reading.records import Columns, Row, read_rows
from bertsmith.tasks.registry import read_task
from bertsmith.weights.huggingface import TASK_FILE, model_folder

EMBEDDING = "embedding"
_ADDED = [EMBEDDING, TRUNCATED]
_JOINS: dict[str, Join] = {".npy": joined_array, ".jsonl": joined_lines, ".parquet": joined_tables}
# A token has thousands of numbers, and a row of them is some hundred KB of text.
_PART_ROWS_OF_TOKENS = 64


@parsed_once()
@fp32_products.kept()
def embed_file(
    model: StrPath | Embedder,
    source: str | Path,
    out: str | Path,
    *,
    rows: RowOptions | None = None,
    columns: Columns | Mapping[str, Any] | None = None,
    **loading: Any,
) -> Account:
    """The vectors of a column of texts in a csv, tsv, jsonl or parquet file, in bounded memory, in the same order.

    source: "-" is standard input. out: .npy, fp32[N, H]; .jsonl, where each line is the row with its "embedding" and
    "truncated_tokens", as of `Predictor`; .parquet, with these as further columns; "-" is JSON lines on standard
    output. A file is written whole or not at all. loading: of `Embedder`, such as `device`, where `model` is none yet.
    columns: in place of the model's. Raises BertsmithError for files and rows that cannot be used, and names these.
    """
    rows = usable_options(source, out, rows)
    check_class(loading.get("vectors"), VectorOptions, "vectors")
    options = model.options if isinstance(model, Embedder) else loading.get("vectors") or VectorOptions()
    kind = _kind_of(out, bool(options.layers))
    load: Load
    if isinstance(model, Embedder):
        rows.check_loaded(loading)
        columns = text_columns(model.columns, columns)
        work = EmbedWork(model.with_columns(columns), kind)
        folder, load = model.folder, lambda device: work
    else:
        rows.check_loading(loading)
        folder = model_folder(model)
        columns = text_columns(read_task(folder / TASK_FILE).columns, columns)
        load = partial(_loaded, model, {**loading, "columns": columns}, kind)
    if not is_pipe(source) and (others := _others(source, columns)):
        say(f"columns of {source} that have no part in the vectors: {', '.join(others)}")
    part_rows = _PART_ROWS_OF_TOKENS if options.layers else Job.part_rows
    fits = OneSchema().add if kind == ".parquet" else Job.fits
    job = Job(load, folder, loading.get("device", "auto"), _JOINS[kind], "embedding", part_rows, fits)
    done = answer_rows(job, source, out, rows)
    say(f"vectors of {counted(done.rows, 'text')}{done.shortfall('text')}")
    return done


def _kind_of(out: str | Path, of_tokens: bool) -> str:
    """What is written: ".npy", ".jsonl" or ".parquet". Raises BertsmithError for a kind of file that is not written
    here. of_tokens: with --layers."""
    if str(out) == "-":
        return ".jsonl"
    kind = Path(out).suffix.lower()
    if kind not in _JOINS:
        what = "vectors are written as npy, jsonl or parquet"
        raise BertsmithError(what, out, "end the name in .npy, .jsonl or .parquet")
    if kind == ".parquet":
        parquet_library(".parquet")
    if of_tokens and kind != ".jsonl":
        raise BertsmithError("the vectors of tokens are written as JSON lines", out, "name a .jsonl file")
    return kind


def _loaded(model: StrPath, loading: Mapping[str, Any], kind: str, device: str) -> PartWork:
    return EmbedWork(Embedder(model, **{**loading, "device": device}), kind)


def _others(source: str | Path, columns: Columns) -> list[str]:
    """The columns of the first row beside that of the text."""
    _, row = next(read_rows(source, columns, report=pass_over), ("", ""))
    return [] if isinstance(row, str) else [name for name in row if name != columns.text]


class EmbedWork(PartWork):
    """Vectors as an array, a table, or lines of JSON."""

    def __init__(self, embedder: Embedder, kind: str) -> None:
        self.columns, self._embedder, self._kind = embedder.columns, embedder, kind
        options = embedder.options
        vectors = asdict(options) | {"layers": list(options.layers)}
        # With what rows get, so that parts without one of these, of an earlier state of the code, are not continued.
        made = {"columns": asdict(self.columns), "vectors": vectors, "kind": kind, "added columns": _ADDED}
        self.facts = embedder.facts | made

    def usable(self, where: str, row: Row | str) -> None:
        record_of(where, row, self.columns.text)
        copied = self._kind != ".npy" and not self._embedder.options.layers
        if copied and (taken := [name for name in _ADDED if name in row]):
            raise TakenColumn(f"this row has a column '{taken[0]}' already", where, "rename that column")
        if self._kind == ".parquet":
            assert not isinstance(row, str)
            check_line(where, json.dumps(row, ensure_ascii=False), row)

    def answered(self, rows: list[Named], part: Part, account: Account, report: Report) -> bytes:
        vectors, sequences = self._embedder.embed(rows)
        lost, tokenizer = sequences.row_lost_tokens, self._embedder.tokenizer
        if self._kind == ".jsonl" and not self._embedder.options.layers:
            answers = list(zip(vectors, lost.tolist(), strict=True))
            empty, written = empty_rows(rows, sequences, tokenizer), []
            for where, (_, tokens), line in lines(rows, answers, _json_line, report):
                account.read(where, tokens, empty)
                written.append(line)
            return "".join(written).encode()
        account.read_all(rows, sequences, tokenizer)
        if self._embedder.options.layers:
            places = part.places()
            of_each = np.split(vectors, np.cumsum(sequences.lengths)[:-1])
            each = zip((places[where] for where, _ in rows), sequences.ids, of_each, lost.tolist(), strict=True)
            return "".join(starmap(self._features, each)).encode()
        if self._kind == ".npy":
            return np.ascontiguousarray(vectors, dtype="<f4").tobytes()
        whole = [row for _, row in rows if not isinstance(row, str)]
        return table_of(whole, {EMBEDDING: vectors, TRUNCATED: lost}, f"{rows[0][0]} and rows after it")

    def _features(self, place: int, ids: NDArray[np.int64], vectors: Vectors, lost_tokens: int) -> str:
        """A line as extract_features.py writes it, and what was cut. place: of the row in the file."""
        indices = self._embedder.options.layers
        of_tokens = vectors.reshape(-1, len(indices), self._embedder.width)
        features = [
            {
                "token": piece,
                "layers": [
                    {"index": index, "values": [round(float(value), 6) for value in values]}
                    for index, values in zip(indices, layers, strict=True)
                ],
            }
            for piece, layers in zip(self._embedder.pieces(ids), of_tokens, strict=True)
        ]
        line = {"linex_index": place, "features": features, TRUNCATED: lost_tokens}
        return json.dumps(line, ensure_ascii=False) + "\n"


def _json_line(where: str, row: Row, answer: tuple[Any, int]) -> str:
    vector, lost_tokens = answer
    return json_text(where, {**row, EMBEDDING: short_numbers(vector), TRUNCATED: lost_tokens}) + "\n"
