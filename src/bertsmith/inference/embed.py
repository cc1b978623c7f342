"""Vectors of texts, by the model of a folder, in Python. For the rows of a file see `embed_file`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertsmith.base.errors import BertsmithError, TypeChecked, check_class
from bertsmith.base.files import StrPath
from bertsmith.base.log import log_choice, say
from bertsmith.inference.backends.model import GraphModel, Loaded, ready_model
from bertsmith.inference.predictor import changed, refused_row, warn_of_nothing_read
from bertsmith.model.config import BertConfig
from bertsmith.tasks.embedding.folders import SentenceRules, read_max_length, read_rules
from bertsmith.tasks.embedding.layers import LayersModel
from bertsmith.tasks.embedding.pooling import Pooling, VectorModel, text_vectors, unit_vectors
from bertsmith.tasks.kinds.embed import Embed
from bertsmith.tasks.reading.files import named_rows
from bertsmith.tasks.reading.records import Columns, Record, Row, row_of, text_of
from bertsmith.tasks.registry import read_task
from bertsmith.tasks.sequences import Fit, Sequences, encode, load_tokenizer
from bertsmith.tasks.task import NotFiniteError
from bertsmith.weights.huggingface import TASK_FILE, model_folder, read_config
from bertsmith.weights.names import POOLER

Vectors = NDArray[np.float32]
_SHORTEST = 3  # [CLS], a piece and [SEP]
_READ = {"text", "header", "quoted"}  # of Columns


@dataclass(frozen=True)
class VectorOptions(TypeChecked):
    """How vectors are made. pooling: "mean", "cls" or "max", and unit: scaled to length 1; what is None is as the
    folder says. layers: not one vector a text, but those of every token behind these layers, -1 being the last one.
    max_length: the most tokens of a text; 0 for the folder's. Raises BertsmithError for layers together with one vector
    a text."""

    pooling: Pooling | None = None
    unit: bool | None = None
    layers: tuple[int, ...] = ()
    max_length: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layers and (self.pooling is not None or self.unit is not None):
            what = "the vectors of tokens are neither pooled nor scaled"
            raise BertsmithError(what, "layers", "leave out --pooling and --normalise, or --layers")

    def applied(self, rules: SentenceRules) -> SentenceRules:
        """The rules of a folder with these in their place, which is logged where they differ."""
        for name, own, asked in (
            ("pooling", rules.pooling, self.pooling),
            ("scaled to length 1", rules.unit, self.unit),
        ):
            if asked not in (None, own):
                log_choice(name, str(asked), f"asked for; the folder's own is {own}")
        pooling = rules.pooling if self.pooling is None else self.pooling
        return replace(rules, pooling=pooling, unit=rules.unit if self.unit is None else self.unit)


class Embedder(Loaded):
    """Gives vectors of texts by the encoder of a folder, or of a run's folder.

    A folder that sentence-transformers reads, as `finetune embed` writes them, has its own pooling, scaling and length.
    Any other BERT gives the mean over all tokens, not scaled, of up to as many tokens as its tokenizer allows and it
    has positions, as sentence-transformers does. columns: where texts stand in a row; where they stood in training, or
    that with the fields of a mapping in its place. At most `budget_tokens` go through the model at once. vectors: what
    is to be otherwise than the folder says. backend: as of `Predictor`. width: H, the numbers of a vector; token_width:
    of that of a token. rules: how vectors are made. unit: whether they have length 1. overlap: tokens that the windows
    of a long text share, of a model that was fine-tuned with windows; None where long texts are cut. folder, facts: the
    model's, and what it is run by. Raises BertsmithError for a folder that holds no BERT, or whose vectors are made in
    a way that is not known here. Sets for the whole process how PyTorch makes fp32 products, as `Predictor` does.
    """

    def __init__(
        self,
        folder: StrPath,
        device: str = "auto",
        *,
        precision: str = "auto",
        budget_tokens: int = 8192,
        columns: Columns | Mapping[str, Any] | None = None,
        vectors: VectorOptions | None = None,
        backend: str = "torch",
    ) -> None:
        check_class(vectors, VectorOptions, "vectors")
        self.options = vectors or VectorOptions()
        self.folder = folder = model_folder(folder)
        trained = read_task(folder / TASK_FILE)
        self.columns = text_columns(trained.columns, columns)
        in_windows = Embed.reads(trained.values) and not self.options.layers
        self.overlap = trained.values.get("window_overlap") if in_windows else None
        config = read_config(folder)
        self.rules = rules = _rules(folder, self.options)
        positions = config.max_position_embeddings
        self.max_length = _length(self.options.max_length, rules.max_length, positions)
        if not self.options.max_length and self.max_length < positions:
            log_choice("longest row", f"{self.max_length} of {positions} tokens", f"{folder} says so")
        if self.overlap is not None:
            share = min(self.overlap, (self.max_length - 2) // 2)
            log_choice("long texts", f"windows of {self.max_length} tokens that share {share}", f"{folder} says so")
        self.width = self.token_width = config.hidden_size
        self._are_cut = rules.dimensions is not None and rules.dimensions < self.width and not self.options.layers
        if rules.dimensions is not None and self._are_cut:
            self.width = rules.dimensions
            log_choice("vectors", f"the first {self.width} of {self.token_width} numbers", f"truncate_dim of {folder}")
        # What is left of a vector of length 1 is shorter, as in sentence-transformers, unless --normalise asks.
        self.unit = bool(self.options.unit) if self._are_cut else rules.unit
        self.tokenizer = load_tokenizer(folder, config)
        if rules.lowercase and not self.tokenizer.lowercase:
            what = "this folder lower-cases texts for a tokenizer that has capital letters"
            raise BertsmithError(what, folder, "use sentence-transformers for this model")
        if self.options.layers and backend != "torch":
            what = f"an export to {backend} gives the hidden states of its last layer alone"
            raise BertsmithError(what, folder, "use --backend torch for --layers")

        def build(config: BertConfig, compute: torch.dtype | None) -> nn.Module:
            if self.options.layers:
                return LayersModel(config, self.options.layers, compute)
            return VectorModel(config, rules.pooling, compute, rules.unit, rules.dimensions)

        run_by = {"backend": backend, "device": device, "precision": precision}
        made = ready_model(build, folder, (POOLER,), **run_by, budget_tokens=budget_tokens)
        self._model, self._runner, self.facts = made

    def __call__(self, texts: Sequence[Row | str] | Row | str) -> Vectors:
        """The vectors of texts, or of rows with the column of the text, in their order: fp32[N, H]; one text, or one
        row, gives [1, H].

        Says how much was cut, and warns of rows with a text without a token that the model knows. Raises BertsmithError
        that names a row without text; and for what is no list of rows, such as a table of pandas.
        """
        named = list(named_rows([texts] if isinstance(texts, str | Mapping) else texts))
        vectors, sequences = self.embed(named)
        if sequences.truncated.rows:
            say(f"{sequences.truncation()} (the model reads {self.max_length})")
        warn_of_nothing_read(sequences, named, self.tokenizer)
        return vectors

    def embed(self, rows: Iterable[tuple[str, Row | str]]) -> tuple[Vectors, Sequences]:
        """The same, with the sequences that were read, for rows that come with their names for messages. With layers
        the vectors of all tokens of all sequences, fp32[T, L * H]."""
        named = list(rows)
        sequences = self.encoded(named)
        try:
            vectors = self.vectors(sequences)
            return vectors if self.options.layers else self.of_texts(vectors, sequences), sequences
        except NotFiniteError as error:
            raise error.of_rows([where for where, _ in named], sequences.rows) from error

    def encoded(
        self, rows: Iterable[tuple[str, Row | str]], keep_end: bool | None = None, windows: bool = True
    ) -> Sequences:
        """The sequences of rows that come with their names for messages. keep_end: whether a long text loses its
        beginning; None for what the folder says. windows: a text may have several sequences, where the model was
        fine-tuned so."""
        records = [record_of(where, row, self.columns.text) for where, row in rows]
        fit = Fit(self.overlap if windows else None, keep_end=keep_end)
        return encode(records, self.tokenizer, self.max_length, fit)

    def vectors(self, sequences: Sequences) -> Vectors:
        """The vectors of sequences: fp32[S, H]; with layers those of all tokens, fp32[T, L * H]."""
        if not sequences.ids:
            return np.zeros((0, self.width * (len(self.options.layers) or 1)), dtype=np.float32)
        return self._runner.scores(self._model, sequences, bool(self.options.layers))

    def of_texts(self, vectors: Vectors, sequences: Sequences) -> Vectors:
        """The vectors of texts, fp32[N, H], from those of their sequences, [S, H]."""
        found = text_vectors(vectors, sequences, self.unit)
        return unit_vectors(found) if self.unit and self._are_cut else found

    def token_vectors(self, sequences: Sequences) -> list[Vectors]:
        """The last hidden states of the tokens of each sequence, [CLS] and [SEP] included: fp32[length, H] each."""
        assert isinstance(self._model, VectorModel | GraphModel)
        states = self._runner.scores(self._model.states, sequences, per_token=True)
        return np.split(states, np.cumsum(sequences.lengths)[:-1])

    def pieces(self, ids: NDArray[np.int64]) -> list[str]:
        """The pieces of a sequence, [CLS] and [SEP] included."""
        return [self.tokenizer.pieces[number] for number in ids]


def text_columns(own: Columns, columns: Columns | Mapping[str, Any] | None) -> Columns:
    """Where texts stand in rows: as a model has it, with these in their place. Raises BertsmithError for fields of a
    mapping that have no part in vectors."""
    found = changed(own, columns)
    if isinstance(columns, Mapping) and (others := sorted(columns.keys() - _READ)):
        what = f"vectors are of one column of texts, and {' and '.join(others)} would have no effect"
        raise BertsmithError(what, "columns", 'name that column: columns={"text": ...}')
    return found


def _rules(folder: Path, options: VectorOptions) -> SentenceRules:
    rules = read_rules(folder)
    if rules is None:
        rules = SentenceRules(unit=False, max_length=read_max_length(folder))
        if options == VectorOptions():
            log_choice("vectors", "the mean of all tokens, not scaled", f"{folder} has no modules.json")
    return options.applied(rules)


def record_of(where: str, row: Row | str, column: str) -> Record:
    """The text of a row. Raises BertsmithError where it has none."""
    try:
        return Record(text_of(row_of(row, column), column), None, None, where)
    except ValueError as error:
        raise refused_row(error, where, row, {"text": column}, Embedder.__name__) from error


def _length(wanted: int, usual: int | None, positions: int) -> int:
    """The most tokens of a text."""
    if wanted and not _SHORTEST <= wanted <= positions:
        what = f"max_length is {wanted}, and the model reads from {_SHORTEST} to {positions} tokens"
        raise BertsmithError(what, "max_length", "use a number between these, or leave it out")
    return wanted or min(usual or positions, positions)
