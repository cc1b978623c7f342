"""Vectors of texts, by the model of a folder: in Python, or for the rows of a file in the same order into a file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from bertsmith.base import files
from bertsmith.base.device import choose_device
from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.log import Progress, log_choice, say
from bertsmith.inference.predict_file import chunks_of
from bertsmith.inference.predictor import changed, read_task
from bertsmith.tasks.embedding.folders import SentenceRules, read_rules
from bertsmith.tasks.embedding.pooling import VectorModel
from bertsmith.tasks.kinds.embed import short_numbers
from bertsmith.tasks.reading.records import (
    Columns,
    Record,
    Row,
    has_lone_surrogate,
    id_of,
    read_rows,
    row_of,
    text_of,
)
from bertsmith.tasks.sequences import Sequences, encode, load_tokenizer
from bertsmith.tasks.task import Runner
from bertsmith.weights.huggingface import TASK_FILE, load_model, model_folder, read_config
from bertsmith.weights.names import POOLER

Vectors = NDArray[np.float32]
SUFFIXES = (".npy", ".jsonl")
EMBEDDING = "embedding"
_ROWS_AT_ONCE = 16_384
_SHORTEST = 3  # [CLS], a piece and [SEP]


class Embedder:
    """Gives vectors of texts by the encoder of a folder, or of a run's folder.

    A folder that sentence-transformers reads, as `finetune embed` writes them, has its own pooling, scaling and length.
    Any other BERT gives the mean over all tokens, not scaled, of up to as many tokens as it has positions, as
    sentence-transformers does. max_length: the most tokens of a text, in place of the folder's. columns: where texts
    stand in a row; where they stood in training, or that with the fields of a mapping in its place. At most
    `budget_tokens` go through the model at once. width: H, the numbers of a vector. rules: how vectors are made.
    precision: what was chosen, such as "bf16". Raises BertsmithError for a folder that holds no BERT, or whose vectors
    are made in a way that is not known here.
    """

    def __init__(
        self,
        folder: str | Path,
        device: str = "auto",
        *,
        precision: str = "auto",
        max_length: int = 0,
        budget_tokens: int = 8192,
        columns: Columns | Mapping[str, Any] | None = None,
    ) -> None:
        folder = model_folder(Path(folder))
        trained = read_task(folder / TASK_FILE).columns
        self.columns = columns if isinstance(columns, Columns) else changed(trained, columns or {})
        config = read_config(folder)
        rules = read_rules(folder)
        if rules is None:
            rules = SentenceRules(unit=False)
            log_choice("vectors", "the mean of all tokens, not scaled", f"{folder} has no modules.json")
        self.rules = rules
        self.max_length = _length(max_length, rules.max_length, config.max_position_embeddings)
        self.width = config.hidden_size
        self.tokenizer = load_tokenizer(folder, config)
        if rules.lowercase and not self.tokenizer.lowercase:
            what = "this folder lower-cases texts for a tokenizer that has capital letters"
            raise BertsmithError(what, folder, "use sentence-transformers for this model")
        chosen = choose_device(device, precision)
        model = load_model(
            lambda config: VectorModel(config, rules.pooling, chosen.compute, rules.unit),
            folder,
            may_be_fresh=(POOLER,),
        )
        self._model = model.to(chosen.torch_device)
        self.precision = chosen.precision
        self._runner = Runner(chosen.torch_device, budget_tokens)

    def __call__(self, texts: Sequence[Row | str] | str) -> Vectors:
        """The vectors of texts, or of rows with the column of the text, in their order: fp32[N, H]; one text gives
        [1, H].

        Says how much was cut. Raises BertsmithError that names a row without text.
        """
        several = [texts] if isinstance(texts, str) else texts
        vectors, sequences = self.embed((f"row {number}", row) for number, row in enumerate(several, start=1))
        if sequences.truncated.rows:
            say(f"{sequences.truncation()} (the model reads {self.max_length})")
        return vectors

    def embed(self, rows: Iterable[tuple[str, Row | str]], column: str = "") -> tuple[Vectors, Sequences]:
        """The same, with the sequences that were read, for rows that come with their names for messages."""
        sequences = self.encoded(rows, column)
        return self.vectors(sequences), sequences

    def encoded(self, rows: Iterable[tuple[str, Row | str]], column: str = "", keep_end: bool = False) -> Sequences:
        """The sequences of rows that come with their names for messages. keep_end: a long text loses its beginning."""
        records = [_record(where, row, column or self.columns.text) for where, row in rows]
        return encode(records, self.tokenizer, self.max_length, keep_end=keep_end)

    def vectors(self, sequences: Sequences) -> Vectors:
        """The vectors of sequences: fp32[S, H]."""
        if not sequences.ids:
            return np.zeros((0, self.width), dtype=np.float32)
        return self._runner.scores(self._model, sequences)

    def token_vectors(self, sequences: Sequences) -> list[Vectors]:
        """The last hidden states of the tokens of each sequence, [CLS] and [SEP] included: fp32[length, H] each."""
        states = self._runner.scores(self._model.states, sequences, per_token=True)
        return np.split(states, np.cumsum(sequences.lengths)[:-1])


@dataclass
class Embedded:
    """What went into a file. rows: texts. width: of a vector. truncated_rows, truncated_tokens: how many texts were
    cut, and how many of their tokens no vector is of."""

    rows: int = 0
    width: int = 0
    truncated_rows: int = 0
    truncated_tokens: int = 0


def embed_file(
    model: str | Path | Embedder, source: str | Path, out: str | Path, *, columns: Columns | None = None
) -> Embedded:
    """The vectors of a column of texts in a csv, tsv, jsonl or parquet file, in bounded memory, in the same order.

    source: "-" is standard input. out: .npy, fp32[N, H]; or .jsonl, where each line is the row with its "embedding";
    "-" is that on standard output. A file is written whole or not at all. columns: in place of the model's. Raises
    BertsmithError for files and rows that cannot be used, and names these.
    """
    check_embedding_file(out)
    embedder = model if isinstance(model, Embedder) else Embedder(model)
    columns, done = columns or embedder.columns, Embedded(width=embedder.width)
    if str(source) != "-" and (others := _others(source, columns)):
        say(f"columns of {source} that have no part in the vectors: {', '.join(others)}")
    with Progress("embedding", None, "row") as progress:
        parts = _parts(embedder, source, columns, progress, done)
        if str(out) == "-":
            for rows, vectors in parts:
                sys.stdout.writelines(_lines(rows, vectors))
        elif Path(out).suffix.lower() == ".npy":
            files.write_whole(Path(out), lambda file: _write_array(file, (each for _, each in parts), done))
        else:
            files.write_whole(
                Path(out),
                lambda file: file.writelines(
                    line.encode() for rows, vectors in parts for line in _lines(rows, vectors)
                ),
            )
    cut = (
        f"; {done.truncated_rows:,} texts truncated to {embedder.max_length} tokens, {done.truncated_tokens:,} not read"
    )
    say(f"{done.rows:,} vectors of {done.width} numbers" + (cut if done.truncated_rows else ""))
    return done


def check_embedding_file(out: str | Path) -> None:
    """Raises BertsmithError for a kind of file that is not written here."""
    suffix = Path(out).suffix.lower()
    if str(out) != "-" and suffix not in SUFFIXES:
        raise BertsmithError(f"'{suffix}' is not a kind of file that is written here", out, nearest(suffix, SUFFIXES))


_Rows = list[tuple[str, Row | str]]


def _parts(
    embedder: Embedder, source: str | Path, columns: Columns, progress: Progress, done: Embedded
) -> Iterator[tuple[_Rows, Vectors]]:
    for rows in chunks_of(read_rows(source, columns), _ROWS_AT_ONCE):
        vectors, sequences = embedder.embed(rows, columns.text)
        done.rows += len(rows)
        done.truncated_rows += sequences.truncated.rows
        done.truncated_tokens += sequences.truncated.tokens
        progress.advance(len(rows))
        yield rows, vectors
    if not done.rows:
        raise BertsmithError("no rows found", source, "give a file with at least one row behind the header")


def _others(source: str | Path, columns: Columns) -> list[str]:
    """The columns of the first row beside that of the text."""
    _, row = next(read_rows(source, columns), ("", ""))
    return [] if isinstance(row, str) else [name for name in row if name != columns.text]


def _record(where: str, row: Row | str, column: str) -> Record:
    try:
        row = row_of(row, column)
        return Record(text_of(row, column), None, None, where, id_of(row, Columns()))
    except ValueError as error:
        raise BertsmithError(str(error), where, "correct or remove this row") from error


def _lines(rows: _Rows, vectors: Vectors) -> Iterator[str]:
    for (where, row), vector in zip(rows, vectors, strict=True):
        assert not isinstance(row, str)
        if EMBEDDING in row:
            raise BertsmithError(f"this row has a column '{EMBEDDING}' already", where, "rename that column")
        line = json.dumps({**row, EMBEDDING: short_numbers(vector)}, ensure_ascii=False) + "\n"
        if has_lone_surrogate(line):
            what = "a column of this row holds half of a surrogate pair, which cannot be written"
            raise BertsmithError(what, where, "correct or remove this row")
        yield line


def _write_array(file: BinaryIO, parts: Iterable[Vectors], done: Embedded) -> None:
    """An .npy file of rows that are counted while they are written: its header has room for more of them."""
    _write_header(file, 0, done.width)
    begin = file.tell()
    for vectors in parts:
        file.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())
    file.seek(0)
    _write_header(file, done.rows, done.width)
    assert file.tell() == begin
    file.seek(0, 2)


def _write_header(file: BinaryIO, rows: int, width: int) -> None:
    head: dict[str, Any] = {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    np.lib.format.write_array_header_1_0(file, head)


def _length(wanted: int, usual: int | None, positions: int) -> int:
    """The most tokens of a text."""
    if wanted and not _SHORTEST <= wanted <= positions:
        what = f"max_length is {wanted}, and the model reads from {_SHORTEST} to {positions} tokens"
        raise BertsmithError(what, "max_length", "use a number between these, or leave it out")
    return wanted or min(usual or positions, positions)
