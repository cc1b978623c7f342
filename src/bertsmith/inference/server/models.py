"""The models of a server: what each can do, how requests become sequences, and outputs become answers.

Legend: N rows of a request, H width of a vector.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.base import files
from bertsmith.base.device import is_cpu
from bertsmith.base.errors import BertsmithError
from bertsmith.inference.embed import Embedder, Vectors
from bertsmith.inference.predictor import LISTS_BEST, Prediction, Predictor
from bertsmith.inference.server.batcher import Lane
from bertsmith.inference.server.limits import Limits
from bertsmith.inference.server.refusals import Refusal, refused
from bertsmith.tasks.embedding.pooling import unit_vectors
from bertsmith.tasks.kinds.pooled import SEVERAL, names_of_config
from bertsmith.tasks.reading.records import NoColumn, Record, has_lone_surrogate
from bertsmith.tasks.registry import answering, read_task
from bertsmith.tasks.sequences import Sequences
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.weights.huggingface import CONFIG_FILE, TASK_FILE, model_folder, read_values

EMBED, MASKED, SCORE = "embed", "masked words", "score"
MOST_GUESSES = 20
HALF_A_PAIR = "holds half of a surrogate pair, which is not a character"
Named = Iterable[tuple[str, str]]
"""Texts of a request, each behind what the client calls it: ("inputs: the text of row 2", "lovely"). Gone through once,
where one cannot be used."""


@dataclass(frozen=True)
class Asked:
    """The rows of a request, as the model reads them. texts: those that the client did not name itself, as it names a
    column. Of a model that gives vectors one for each row."""

    rows: Sequence[Any]
    texts: Named = ()


@dataclass(frozen=True)
class Cut:
    """What to do with a row that is longer than the model reads. truncate: whether it may lose tokens; otherwise the
    request is refused. keep_end: whether it loses its beginning; None for what the model's folder says. windows:
    whether a model of vectors that reads long texts in windows does so."""

    truncate: bool = False
    keep_end: bool | None = None
    windows: bool = True


@dataclass(frozen=True)
class Encoded:
    """The rows of a request. records: [N]; none of a model that gives vectors. empty: the rows, from 1, with a
    text of which the model reads no token that it knows."""

    records: Sequence[Record]
    sequences: Sequences
    empty: Sequence[int]


class RowModel:
    """A model that answers rows: classes, numbers, tags, answers to questions, choices or masked words.

    kind, columns, pairs, prompts: as of `Predictor`. labels: of a model that classifies, in the order of its outputs.
    several_labels: whether a row may have any number of them. reads_masks: whether "[MASK]" in a text is the mask.
    piece_ids: of the vocabulary's pieces, where it is.
    """

    def __init__(self, name: str, folder: Path, predictor: Predictor, budget_tokens: int) -> None:
        self.name, self.folder, self._predictor = name, folder, predictor
        self.kind, self.max_length, self.precision = predictor.kind, predictor.max_length, predictor.facts["precision"]
        self.columns, self.pairs, self.prompts = predictor.columns, predictor.pairs, predictor.prompts
        self.tokenizer = predictor.tokenizer
        self.lane = Lane(name, predictor.outputs, budget_tokens)
        self.lanes = (self.lane,)
        config = files.read_json(folder / CONFIG_FILE)
        self.labels = names_of_config(config) if self.kind in ("classify", "regress", SCORE, "tag") else []
        self.several_labels = config.get("problem_type") == SEVERAL
        self.reads_masks = self.kind == MASKED
        pieces = self.tokenizer.pieces if self.reads_masks else ()
        self.piece_ids = {piece: number for number, piece in enumerate(pieces)}

    def encode(self, asked: Asked, cut: Cut) -> Encoded:
        """Raises Refusal for rows that cannot be used (422), and for one that is too long (413)."""
        if self.pairs and self.columns.text_b in self.prompts:
            self._check_second_texts(asked.rows)
        try:
            records, sequences = self._predictor.encoded(_named(asked.rows), cut.keep_end)
        except BertsmithError as error:
            check_texts(asked.texts)
            if isinstance(error, NoColumn):  # whose remedy is for programs
                keys = ", ".join(f'"{name}": ...' for name in self.prompts)
                error = NoColumn(error.what, error.where, f"give each row as {{{keys}}}")
            raise refused(error) from error
        _check_length(sequences, cut, self.max_length)
        return Encoded(records, sequences, _empty(sequences, self.tokenizer))

    def _check_second_texts(self, rows: Sequence[Any]) -> None:
        """Raises Refusal (422) for a row with one text: an empty second one is none."""
        column = self.columns.text_b
        for where, row in _named(rows):
            if not isinstance(row, Mapping) or row.get(column) in (None, ""):
                what = f"{self.name} takes rows of two texts, and this one has no '{column}', or an empty one ({where})"
                raise Refusal(422, f"{what}; give the second text there")

    def answers(self, encoded: Encoded, outputs: Sequence[Any]) -> list[Prediction]:
        return self._predictor.answered(outputs, encoded.records, encoded.sequences)

    def raw_scores(self, encoded: Encoded, outputs: Sequence[Any]) -> NDArray[np.float32]:
        """As of `Predictor`: float32[N, C]."""
        return self._predictor.raw_scores(outputs, encoded.sequences)


class TextModel:
    """A model that gives vectors of texts. width: H; token_width: of vectors of tokens. unit: whether its vectors have
    length 1."""

    kind = EMBED

    def __init__(self, name: str, folder: Path, embedder: Embedder, budget_tokens: int) -> None:
        self.name, self.folder, self._embedder = name, folder, embedder
        self.max_length, self.precision = embedder.max_length, embedder.facts["precision"]
        self.width, self.unit, self.pooling = embedder.width, embedder.unit, embedder.rules.pooling
        self.token_width, self.tokenizer = embedder.token_width, embedder.tokenizer
        self.lane = Lane(name, lambda sequences: list(embedder.vectors(sequences)), budget_tokens)
        self.token_lane = Lane(name, embedder.token_vectors, budget_tokens)
        self.lanes = (self.lane, self.token_lane)

    def encode(self, asked: Asked, cut: Cut) -> Encoded:
        """Raises Refusal for texts that cannot be used (422), and for one that is too long (413)."""
        try:
            sequences = self._embedder.encoded(_named(asked.rows), cut.keep_end, cut.windows)
        except BertsmithError as error:
            check_texts(asked.texts)
            raise refused(error) from error
        _check_length(sequences, cut, self.max_length, asked.texts)
        return Encoded((), sequences, _empty(sequences, self.tokenizer))

    def vectors(
        self, encoded: Encoded, outputs: Sequence[Vectors], normalize: bool, dimensions: int | None = None
    ) -> Vectors:
        """float32[N, H], or the first `dimensions` numbers of each; scaled to length 1 with `normalize`."""
        found = self._embedder.of_texts(np.stack(outputs), encoded.sequences)[:, :dimensions]
        return unit_vectors(found) if normalize else found


Model = RowModel | TextModel


def open_model(name: str, folder: Path, run_by: Mapping[str, str], limits: Limits) -> Model:
    """Loads the model of a folder, or of a run's folder. run_by: device, precision and backend, as of `Predictor`.

    A folder whose model answers rows is one of those; any other BERT gives vectors. Raises BertsmithError where it
    holds none that can be served.
    """
    folder = model_folder(folder)
    config = read_values(folder)
    if not isinstance(config, Mapping):
        raise BertsmithError("this file holds no JSON object", folder / CONFIG_FILE, "name a model folder")
    on_cpu = run_by["backend"] != "torch" or is_cpu(run_by["device"])
    options: dict[str, Any] = {**run_by, "budget_tokens": (budget := limits.batch_tokens_on(on_cpu))}
    kind = answering(read_task(folder / TASK_FILE).values | dict(config))
    if kind is None or getattr(kind, "kind", "") == EMBED:
        return TextModel(name, folder, Embedder(folder, **options), budget)
    options |= {"top": MOST_GUESSES} if getattr(kind, "kind", kind.name) in LISTS_BEST else {}
    return RowModel(name, folder, Predictor(folder, **options), budget)


def check_texts(texts: Named, may_be_empty: bool = False) -> None:
    """Raises Refusal (422) for the first text that cannot be used."""
    for name, text in texts:
        if not (may_be_empty or text.strip()):
            raise Refusal(422, f"{name} is empty; give a text there")
        if has_lone_surrogate(text):
            raise Refusal(422, f"{name} {HALF_A_PAIR}; correct it")


def _named(rows: Sequence[Any]) -> list[tuple[str, Any]]:
    return [(f"row {number}", row) for number, row in enumerate(rows, start=1)]


def _empty(sequences: Sequences, tokenizer: Tokenizer) -> list[int]:
    return sorted(1 + row for rows in sequences.empty_rows(tokenizer.special).values() for row in rows.tolist())


def _check_length(sequences: Sequences, cut: Cut, max_length: int, texts: Named = ()) -> None:
    """Raises Refusal (413) where a row would lose tokens and the request does not allow that. texts: one for each row;
    none where rows are called by their number."""
    lost = sequences.row_lost_tokens
    if cut.truncate or not lost.any():
        return
    row = int(np.flatnonzero(lost)[0])
    name = next((name for name, _ in islice(texts, row, None)), f"row {row + 1}")
    what = f"{name} has {int(lost[row]):,} tokens more than the {max_length:,} that the model reads"
    texts_of_row = np.count_nonzero(sequences.rows[sequences.text_starts] == row)
    if np.count_nonzero(sequences.rows == row) > texts_of_row:
        what = f"the shorter text of {name} is {int(lost[row]):,} tokens longer than a window has room for"
    raise Refusal(413, f"{what}; shorten it, or set truncate to true")
