"""One model folder, loaded once, that answers rows of text."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError, check_class
from bertsmith.base.files import StrPath
from bertsmith.base.log import log_choice, say, warn
from bertsmith.inference.backends.model import Loaded, check_loaded, count_of, ready_model
from bertsmith.tasks.embedding.folders import read_max_length, read_sentence_config
from bertsmith.tasks.examples import all_empty_in_words, by_windows
from bertsmith.tasks.kinds.likelihood import Likelihood
from bertsmith.tasks.kinds.masked_words import MaskedWords
from bertsmith.tasks.reading.bad_rows import SkippedRows
from bertsmith.tasks.reading.files import name_of, named_rows
from bertsmith.tasks.reading.pairs import check_pairs, with_as_many_texts
from bertsmith.tasks.reading.records import (
    Columns,
    NoColumn,
    Record,
    Row,
    RowReader,
    Source,
    read_records,
    unusable,
)
from bertsmith.tasks.registry import answering, architecture_of, of_folder, read_task
from bertsmith.tasks.report.parts import report_files
from bertsmith.tasks.sequences import Fit, Sequences, encode, load_tokenizer, window_means
from bertsmith.tasks.settings import COLUMNS_READ_BY, changed_columns, check_read
from bertsmith.tasks.task import Answer, Answering, Examples, Floats, FolderFacts, NotFiniteError, Task
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.weights.huggingface import CONFIG_FILE, TASK_FILE, model_folder, read_config

Prediction = Answer

TRUNCATED = "truncated_tokens"
LISTS_BEST = ("qa", "masked words")
"""The kinds of models whose answers list the n best."""
_READ_BY = {"--n-best": LISTS_BEST, **COLUMNS_READ_BY}
"""Flags that not every kind of model reads, and the kinds that do."""


class Predictor(Loaded):
    """Answers rows of text with the model of a folder, or of a run's folder.

    What it gives for each row is its task's: {"label", "score", "scores"} of a classifier, {"labels", "scores"} of one
    with several labels a row, {"number"}, {"score", "logit"} of a reranker, {"entities"} and of rows of words {"tags"},
    {"answer", "score", "start", "end", "nbest"} with the `top` best answers, {"label", "choice", "score", "scores"} of
    multiple choice, {"embedding"}, or {"similarity"} of two texts; a pre-trained folder gives {"guesses"}: for each
    [MASK] of the row the `top` likeliest pieces (5), as {"piece", "probability"}. Scores are probabilities (a
    reranker's are what its folder says), places count characters, an embedding is a list of numbers.
    Each answer also has "truncated_tokens", how many tokens of the row the model did not read.
    columns: where the texts stand in a row; the columns that the model was fine-tuned on, or these with the fields of a
    mapping in their place. At most `budget_tokens` go through the model at once. backend: "torch"; or "onnx" or
    "openvino", for a folder that was exported to it. folder, facts: the model's, and what it is run by. model: gives
    the scores. Raises BertsmithError for a folder that predicts nothing, and for a `top` and columns that its kind does
    not read.

    Sets for the whole process how PyTorch makes fp32 products, as `bertsmith.base.device.choose_device`
    says: a model that is loaded later in another precision may change the last digits of an fp32 one.
    """

    def __init__(
        self,
        folder: StrPath,
        device: str = "auto",
        *,
        precision: str = "auto",
        columns: Columns | Mapping[str, Any] | None = None,
        top: int | None = None,
        budget_tokens: int = 8192,
        backend: str = "torch",
    ) -> None:
        self.folder = folder = model_folder(folder)
        shape = read_config(folder)
        trained = read_task(folder / TASK_FILE)
        self.columns = changed(trained.columns, columns)
        positions = shape.max_position_embeddings
        self.max_length = min(trained.max_length or read_max_length(folder) or positions, positions)
        if trained.max_length is None and self.max_length < positions:
            log_choice("longest row", f"{self.max_length} of {positions} tokens", f"{folder} says so")
        self.tokenizer = load_tokenizer(folder, shape)
        config, sentence = files.read_json(folder / CONFIG_FILE), read_sentence_config(folder)
        # What becomes of a cross-encoder's number, which versions before sentence-transformers 6 say in config.json.
        named = {} if trained.values else {"sbert_ce_default_activation_function": sentence.get("activation_fn")}
        kind = answering(named | trained.values | config)
        if kind is None:
            what = f"this folder holds {architecture_of(config)}, which predicts nothing by itself"
            fix = "fine-tune it first; `bertsmith embed` gives vectors of texts"
            if not config.get("architectures"):
                fix = f"if it has a head, name its class in architectures of {CONFIG_FILE}; else {fix}"
            raise BertsmithError(what, folder, fix)
        most = FolderFacts.top if top is None else count_of("top", top)
        about = FolderFacts(config, trained.values, self.tokenizer, most, sentence)
        self._task: Answering = of_folder(kind, folder, about)
        given = changed_columns(self.columns, trained.columns) + ["--n-best"] * (top is not None)
        check_read(self.kind, given, _READ_BY, folder)
        run_by = {"backend": backend, "device": device, "precision": precision}
        self.model, self._runner, facts = ready_model(
            self._task.build, folder, kind.may_be_fresh, **run_by, budget_tokens=budget_tokens
        )
        self.facts = {**facts, "top": most}

    def __call__(self, rows: Sequence[Row | str] | Row | str) -> list[Prediction]:
        """The predictions of the rows, in their order. A row is a text, or a mapping with the texts' columns; a single
        one gives a list of one.

        Rows of like lengths go through the model together, without padding. Says how much was cut, and warns of rows
        with a text without a token that the model knows. Raises BertsmithError that names a row without text, one with
        two texts where the model takes one, and one without a [MASK] where one is needed; and for what is no list of
        rows, such as a table of pandas.
        """
        named = list(named_rows([rows] if isinstance(rows, str | Mapping) else rows))
        predictions, sequences = self.predict(named)
        warn_of_nothing_read(sequences, named, self.tokenizer)
        return predictions

    def predict(self, rows: Iterable[tuple[str, Row | str]]) -> tuple[list[Prediction], Sequences]:
        """The same, with the sequences that were read, for rows that come with their names for messages
        ("file:line")."""
        records, sequences = self.encoded(rows)
        if sequences.truncated.rows:
            remedy = by_windows(self._task) if isinstance(self._task, Task) else ""
            more = f"; one that is fine-tuned with {remedy}" if remedy else ""
            say(f"{sequences.truncation()} (the model reads {self.max_length}{more})")
        try:
            return self.answered(self.outputs(sequences), records, sequences) if records else [], sequences
        except NotFiniteError as error:
            raise error.of_rows([record.where for record in records], sequences.rows) from error

    def encoded(
        self, rows: Iterable[tuple[str, Row | str]], keep_end: bool | None = None
    ) -> tuple[list[Record], Sequences]:
        """Rows as records and as sequences. keep_end: whether what is too long loses its beginning; None for what the
        folder says.

        Raises BertsmithError as a call does, and for another side than the folder's for a kind of model whose rows are
        cut as it says alone.
        """
        task, records = self._task, [self.record(where, row) for where, row in rows]
        sequences = task.encode(records, self.tokenizer, self.max_length)
        if keep_end not in (None, self.tokenizer.keep_end) and sequences.truncated.rows:
            if type(task).encode is not Answering.encode:
                what = f"rows of a {self.kind} model are cut as its folder says, and at no other side"
                raise BertsmithError(what, records[0].where, "leave the direction out")
            fit = Fit(task.overlap, task.cut, keep_end)
            sequences = encode(records, self.tokenizer, self.max_length, fit, task.literal_specials)
        task.check_rows(records, sequences)
        return records, sequences

    def outputs(self, sequences: Sequences) -> list[Any]:
        """What the model gives for each sequence, which does not depend on the others: [S]."""
        return self._task.outputs(self.model, sequences, self._runner)

    def answered(self, outputs: Sequence[Any], records: Sequence[Record], sequences: Sequences) -> list[Prediction]:
        """The predictions of records, from the `outputs` of their sequences."""
        answers = self._task.answers_from(outputs, records, sequences)
        lost = sequences.row_lost_tokens.tolist()
        return [{**answer, TRUNCATED: tokens} for answer, tokens in zip(answers, lost, strict=True)]

    def record(self, where: str, row: Row | str) -> Record:
        """A row as the task reads it. Raises BertsmithError for one that cannot be predicted."""
        try:
            record = self._task.record(row, self.columns, False, where)
        except ValueError as error:
            wanted = self.reader.wanted(self.columns, labelled=False)
            raise refused_row(error, where, row, wanted, type(self).__name__, self.reader.remedy) from error
        if self._task.pairs is not None:
            check_pairs([record], self._task.pairs)
        return record

    def raw_scores(self, outputs: Sequence[Any], sequences: Sequences) -> Floats:
        """The numbers of each class before the softmax or sigmoid, of a model that scores rows: float32[N, C]."""
        return window_means(np.stack(outputs), sequences)

    def examples(self, source: Source, skipped: SkippedRows | None = None) -> Examples:
        """Labelled rows of a file or a list, encoded. skipped: is given rows that cannot be used. Without it raises
        BertsmithError for such, as it does for a model whose answers cannot be compared with labels."""
        if not isinstance(self._task, Task):
            what = "this model was not fine-tuned on labels that its answers could be compared with"
            fix = "name a fine-tuned model; a pre-trained one is measured by --minimal-pairs"
            raise BertsmithError(what, self.folder, fix)
        records = read_records(source, self.columns, reader=self.reader, skipped=skipped)
        if self._task.pairs is not None:
            name = name_of(source) if isinstance(source, str | Path) else "the rows"
            records = with_as_many_texts(records, self._task.pairs, skipped, name)
        return self._task.examples(records, self.tokenizer, self.max_length)

    def evaluate(self, examples: Examples, report: Path | None = None) -> dict[str, float]:
        """Every metric of the model on labelled rows (`examples`; `inference.evaluate.evaluate` takes files, too).
        report: a folder for what the task has to tell of them, such as tables and pictures."""
        assert isinstance(self._task, Task)
        runner = replace(self._runner, doing="measuring")
        scores = runner.scores(self.model, examples.sequences, self._task.per_token)
        if report is not None:
            before = report_files(report)
            self._task.write(scores, examples, report)
            say(f"report: {report}")
            if stay := [name for name, written in report_files(report).items() if before.get(name) == written]:
                warn(f"files of an earlier report stay in {report}, not about these rows: {', '.join(stay)}")
        return self._task.evaluate(scores, examples)

    def for_likelihood(self, left_to_right: bool = False) -> Self:
        """The same model, which answers how likely texts are (`tasks/kinds/likelihood.py`). left_to_right: within
        words. Raises BertsmithError for one that was not pre-trained."""
        if not isinstance(self._task, MaskedWords):
            what = f"this is a model of {self.kind}, which does not know how likely texts are"
            raise BertsmithError(what, self.folder, "name a pre-trained model")
        other = copy.copy(self)
        other._task = Likelihood(self.tokenizer, left_to_right)
        return other

    @property
    def kind(self) -> str:
        """The name of the model's task."""
        return self._task.kind if isinstance(self._task, Task) else self._task.name

    @property
    def pairs(self) -> bool | None:
        """Whether rows have two texts; None where that is not known."""
        return self._task.pairs

    @property
    def reader(self) -> type[RowReader]:
        """How the rows of this model are read."""
        return type(self._task)

    @property
    def prompts(self) -> list[str]:
        """The columns that a person is asked for, in order. A row must have them, but for a second text where `pairs`
        is None."""
        first, *others = self.reader.prompts(self.columns)
        has_text = "text" in self.reader.wanted(self.columns, labelled=False)  # a question may have that name too
        second = [self.columns.text_b] if self._task.pairs and has_text else []
        return [first, *second, *(name for name in others if name not in second)]

    def cells(self, prediction: Prediction) -> Prediction:
        """A prediction as the columns of a table, with lists and objects in them."""
        cells = self._task.cells(prediction)
        return {name if name == TRUNCATED else f"predicted_{name}": value for name, value in cells.items()}


def refused_row(
    error: ValueError, where: str, row: Row | str, wanted: Mapping[str, str], taken_by: str, remedy: str = ""
) -> BertsmithError:
    """What is wrong with a row that cannot be answered. wanted: of `RowReader`. taken_by: the class whose `columns`
    name another column. remedy: beside correcting the row."""
    absent = [field for field, name in wanted.items() if isinstance(row, Mapping) and name not in row][:1]
    other = [f'{taken_by}(..., columns={{"{field}": ...}}) names another' for field in absent]
    fix = "; ".join(filter(None, ("correct or remove this row", *other, remedy)))
    return NoColumn(str(error), where, fix) if absent else unusable(error, where, fix)


def warn_of_nothing_read(sequences: Sequences, named: Sequence[tuple[str, Row | str]], tokenizer: Tokenizer) -> None:
    """Counts and names rows that were answered, with a text without a token that the model knows."""
    for words in all_empty_in_words(sequences, [name for name, _ in named], tokenizer.special):
        warn(words)


def load_predictor(folder: StrPath, device: str = "auto", *, likelihood: bool = False, **options: Any) -> Predictor:
    """A `Predictor`, of how likely texts are if wanted. options: its own. Raises BertsmithError for a `top` of what
    lists nothing."""
    if likelihood and options.get("top") is not None:
        raise BertsmithError("--likelihood lists nothing that --n-best could count", "top", "leave out one of them")
    predictor = Predictor(folder, device, **options)
    return predictor.for_likelihood() if likelihood else predictor


def predictor_of(model: StrPath | Predictor, **loading: Any) -> Predictor:
    """A loaded model as it is, or that of a folder. loading: of `Predictor`. Raises BertsmithError for this where the
    model is loaded already."""
    if not isinstance(model, Predictor):
        return Predictor(model, **loading)
    check_loaded(loading)
    return model


def changed(columns: Columns, values: Columns | Mapping[str, Any] | None) -> Columns:
    """Columns with the fields of a mapping in their place, or others that take their place. Raises BertsmithError for a
    field that there is not."""
    if values is None or isinstance(values, Columns):
        return values or columns
    check_class(values, Mapping, "columns")
    try:
        return Columns.from_json({**asdict(columns), **values})
    except ValueError as error:
        fix = "use the fields of bertsmith.tasks.reading.records.Columns"
        raise BertsmithError(str(error), "columns", fix) from error
