"""What a task is: the one contract between fine-tuning, prediction, and whatever else uses a task's model.

A task says how rows are read and encoded, which model stands on the encoder, its loss, its metrics, how scores become
answers, and what the model folder must hold. An instance of it knows its labels. Legend: N records, S sequences, T
token slots, U units of training, C classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.base import ranks
from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.log import Progress, say
from bertsmith.model.config import BertConfig
from bertsmith.model.losses import LossSum
from bertsmith.tasks.reading.bad_rows import Report, pass_over
from bertsmith.tasks.reading.pairs import check_pairs
from bertsmith.tasks.reading.records import Record, RowReader
from bertsmith.tasks.sampling import rows_of_epoch
from bertsmith.tasks.sequences import Fit, Inputs, Sequences, Targets, by_length, encode, pack, rows_ended, slots_of
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tokens.tokenizer import Tokenizer, truncated_lengths

Answer = dict[str, Any]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class FolderFacts:
    """What a model folder says of its task. config: its config.json. task: its task.json, {} where there is none.
    tokenizer: its tokenizer. top: how many guesses a masked word gets. sentence: its config_sentence_transformers.json,
    {} where there is none."""

    config: Mapping[str, Any]
    task: Mapping[str, Any]
    tokenizer: Tokenizer
    top: int = 5
    sentence: Mapping[str, Any] = field(default_factory=dict)


class Answering(RowReader, ABC):
    """A kind of model that answers rows of text.

    name: of the kind, in words. architectures: the classes of `transformers` that a folder of this kind may name.
    may_be_fresh: parts that a folder may lack. literal_specials: whether "[MASK]" in a text is the mask. pairs: whether
    rows have two texts; None where that is not known. overlap: tokens that the windows of a long text share; None where
    it is cut instead.
    """

    name: ClassVar[str] = ""
    architectures: ClassVar[tuple[str, ...]]
    may_be_fresh: ClassVar[Collection[str]] = ()
    literal_specials: ClassVar[bool] = False
    pairs: bool | None = None
    overlap: int | None = None

    @classmethod
    def reads(cls, config: Mapping[str, Any]) -> bool:
        """Whether a folder with this config.json, which names one of `architectures`, is of this kind."""
        return True

    @classmethod
    @abstractmethod
    def of_folder(cls, facts: FolderFacts) -> Self:
        """The task of a model folder. Raises BertsmithError where the folder describes none."""

    @abstractmethod
    def build(self, config: BertConfig, compute: torch.dtype | None) -> nn.Module:
        """The model, without weights."""

    def encode(self, records: Sequence[Record], tokenizer: Tokenizer, max_length: int) -> Sequences:
        """The sequences of records. Raises BertsmithError for single texts where pairs are wanted, and the reverse."""
        if self.pairs is not None:
            check_pairs(records, self.pairs)
        return encode(records, tokenizer, max_length, Fit(self.overlap, self.cut), self.literal_specials)

    @staticmethod
    def cut(first: int, second: int, room: int) -> tuple[int, int]:
        """How many tokens are kept of two texts of these lengths where there is room for so many."""
        return truncated_lengths(first, second, room)

    @abstractmethod
    def outputs(self, model: nn.Module, sequences: Sequences, runner: Runner) -> list[Any]:
        """What the model gives for each sequence by itself, whatever stands beside it: [S], for `answers_from`. The
        model must be in evaluation mode."""

    @abstractmethod
    def answers_from(self, outputs: Sequence[Any], records: Sequence[Record], sequences: Sequences) -> list[Answer]:
        """An answer for each record, in their order, from the `outputs` of all sequences."""

    def check_rows(self, records: Sequence[Record], sequences: Sequences) -> None:
        """Raises BertsmithError at a row that has no answer."""

    def answers(
        self, model: nn.Module, records: Sequence[Record], sequences: Sequences, runner: Runner
    ) -> list[Answer]:
        """An answer for each record, in their order. The model must be in evaluation mode. Raises as `check_rows`."""
        self.check_rows(records, sequences)
        return self.answers_from(self.outputs(model, sequences, runner), records, sequences) if records else []

    def cells(self, answer: Answer) -> Answer:
        """An answer as the columns of a table, which are the same for all rows."""
        return answer


@dataclass(frozen=True)
class Runner:
    """How a model is run over many rows.

    budget_tokens: the most that go through it at once. over_ranks: every rank runs a share of them, and all get all
    scores; then all must call it alike. between: called before each batch, equally often on all ranks; it may raise.
    doing: what takes long, in words, such as "measuring dev": then rows done of rows are shown; "" for nothing shown.
    """

    device: torch.device
    budget_tokens: int
    over_ranks: bool = False
    between: Callable[[], None] = lambda: None
    doing: str = ""

    @torch.no_grad()
    def scores(self, model: Callable[[Inputs], Tensor], sequences: Sequences, per_token: bool = False) -> Floats:
        """The model's scores in the order of the sequences: float32[S, C], or with `per_token` those of the tokens of
        all sequences, one after the other: float32[T, C]. The model must be in evaluation mode."""
        order = list(by_length(sequences, self.budget_tokens))
        rank, world = (ranks.rank(), ranks.world_size()) if self.over_ranks else (0, 1)
        rows, left = [], np.bincount(sequences.rows)
        with Progress(self.doing, len(left), "rows") if self.doing else nullcontext() as progress:
            for first in range(0, len(order), world):
                self.between()
                if first + rank < len(order):
                    rows.append(model(pack(sequences, order[first + rank], self.device)).float().cpu().numpy())
                if progress is not None:
                    progress.advance(rows_ended(left, sequences.rows[np.concatenate(order[first : first + world])]))
        if self.over_ranks:
            everyone = ranks.gathered(rows)
            rows = [everyone[place % len(everyone)][place // len(everyone)] for place in range(len(order))]
        if not rows:
            return np.zeros((0, 0), dtype=np.float32)
        found, places = np.concatenate(rows), np.concatenate(order)
        check_finite(found, np.repeat(places, sequences.lengths[places]) if per_token else places)
        if per_token:
            places = slots_of(np.concatenate(([0], np.cumsum(sequences.lengths))), places)
        scores = np.empty_like(found)
        scores[places] = found
        return scores


class NotFiniteError(BertsmithError):
    """Scores of a model that are NaN or infinite. sequences: that have such. rows: their names, once they are known."""

    sequences: NDArray[np.int64]
    rows: tuple[str, ...] = ()

    def of_rows(self, names: Sequence[str], rows: NDArray[np.int64]) -> NotFiniteError:
        """The same of the first of the rows that have such scores. names: of all rows. rows: that of each sequence."""
        bad = tuple(names[row] for row in np.unique(rows[self.sequences]))
        what = "the model's scores of this row are not finite (NaN or infinity)"
        error = NotFiniteError(what, bad[0], self.fix)
        error.sequences, error.rows = self.sequences, bad
        return error


def check_finite(scores: NDArray[Any], sequences: NDArray[np.int64]) -> None:
    """Raises NotFiniteError for scores of a model that are NaN or infinite: [R] or [R, C], of sequences int64[R]."""
    if not np.isfinite(scores).all():
        refuse_not_finite(sequences[~np.isfinite(scores).reshape(len(scores), -1).all(1)])


def refuse_not_finite(sequences: NDArray[np.int64]) -> None:
    """Raises NotFiniteError for these sequences, if there are any."""
    if len(sequences):
        fix = "use --precision fp32, or train again with a lower learning rate"
        error = NotFiniteError("the model's scores are not finite (NaN or infinity)", "the model", fix)
        error.sequences = np.unique(sequences)
        raise error


@dataclass(frozen=True)
class Examples:
    """Rows made ready for training.

    records: [N]. targets: what the model should give for each of U units. units: int64[U + 1]; unit u has the sequences
    units[u] to units[u + 1]. A unit is what a step of training counts: a record, or one sequence of it. part: "train",
    "dev" or "test". originals: units from this number on are of rows that were made of the earlier ones by replacing
    words; None where all are the user's.
    """

    records: Sequence[Record]
    sequences: Sequences
    targets: Targets
    units: NDArray[np.int64]
    part: str = ""
    originals: int | None = None

    @property
    def original_records(self) -> int:
        """How many records are the user's; those behind them were made."""
        all_original = self.originals is None or self.originals == len(self.units) - 1
        return len(self.records) if all_original else int(self.sequences.rows[self.units[self.originals]])

    def where(self, unit: int) -> str:
        """ "file:line" of the record of a unit."""
        record: Record = self.records[self.sequences.rows[self.units[unit]]]
        return record.where

    def members(self, units: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The sequences of some units, one unit after the other, and which of these units each belongs to: int64[S]."""
        counts = self.units[units + 1] - self.units[units]
        return slots_of(self.units, units), np.repeat(np.arange(len(units)), counts)

    def unit_lengths(self) -> NDArray[np.int64]:
        """int64[U], in tokens."""
        return np.asarray(np.add.reduceat(self.sequences.lengths, self.units[:-1]))


class Task(Answering):
    """A kind of model that is fine-tuned on labelled rows.

    kind: its name on the command line. architectures: the first one is what its folders are written as. head: the
    module of its model that is fresh, "" for none. metrics: the figures that may select the best weights, the task's
    own choice first; the highest is the best. per_token: the model gives scores for every token, not for every
    sequence. unit_is_sequence: a step of training counts sequences, not records. baseline_name: the best answer that
    does not look at the text. usual_length: the most tokens of a sequence, where the user does not say.
    always_in_windows: long texts are read in windows without the setting too. identity: what a checkpoint of this kind
    holds that one of an earlier version does not. counts: training rows of each label, the most frequent first.
    """

    kind: ClassVar[str]
    head: ClassVar[str]
    metrics: ClassVar[tuple[str, ...]]
    per_token: ClassVar[bool] = False
    unit_is_sequence: ClassVar[bool] = False
    baseline_name: ClassVar[str] = "most frequent label"
    usual_length: ClassVar[int] = 128
    always_in_windows: ClassVar[bool] = False
    identity: ClassVar[Mapping[str, str]] = {}
    counts: Mapping[str, int] | None = None

    @classmethod
    def check_labels(cls, records: Sequence[Record], settings: FinetuneSettings) -> None:
        """Raises BertsmithError for training rows that have nothing to learn, before some become dev rows."""

    @classmethod
    def learnable(cls, records: Sequence[Record], report: Report = pass_over) -> Sequence[Record]:
        """The training rows that can be learned from. Says which others there are, and why. report: is given each."""
        return records

    @classmethod
    @abstractmethod
    def of_records(cls, records: Sequence[Record], settings: FinetuneSettings) -> Task:
        """The task that training rows define. Raises BertsmithError for labels that do not fit it."""

    @classmethod
    def check(cls, settings: FinetuneSettings) -> None:
        """Raises BertsmithError for settings that this task does not read, and for a metric that it does not have."""
        cls.metric_of(settings)
        if settings.windows and cls.always_in_windows:
            say(f"{cls.kind} reads long texts in windows with or without --windows")
        settings.check_read_by(cls.kind, cls.always_in_windows)

    @classmethod
    def metric_of(cls, settings: FinetuneSettings) -> str:
        """The metric that selects the best weights. Raises BertsmithError for one that this task does not have."""
        if settings.metric == "auto":
            return cls.metrics[0]
        if settings.metric not in cls.metrics:
            what = f"metric '{settings.metric}' is not one of {cls.kind}"
            raise BertsmithError(what, "metric", nearest(settings.metric, cls.metrics))
        return settings.metric

    def settled(self, folder: Path, parts: Mapping[str, Sequence[Record]], settings: FinetuneSettings) -> Self:
        """The task as it is for a run from this model folder, with all its rows. Raises BertsmithError for rows to
        measure on that do not fit the others."""
        return self

    def selecting(self, settings: FinetuneSettings) -> str:
        """The metric that selects the best weights of a run."""
        return self.metric_of(settings)

    def examples(self, records: Sequence[Record], tokenizer: Tokenizer, max_length: int) -> Examples:
        """Labelled records, encoded. Raises BertsmithError at bad ones, and at labels that the training rows lack."""
        sequences = self.encode(records, tokenizer, max_length)
        units = np.arange(len(sequences.ids) + 1) if self.unit_is_sequence else sequences.row_offsets
        return Examples(records, sequences, self.targets(records, sequences), units)

    @abstractmethod
    def targets(self, records: Sequence[Record], sequences: Sequences) -> Targets:
        """What the model should give for each unit. Raises BertsmithError at a label that the training rows lack."""

    def labels(self, targets: NDArray[Any]) -> int:
        """How many labels the loss of these targets sums over."""
        return len(targets)

    def order(self, examples: Examples, seed: int, epoch: int) -> NDArray[np.int64]:
        """The units of an epoch, counted from 1, in its order: int64[U]. A pure function, so that resume is exact."""
        return rows_of_epoch(len(examples.targets), None, "natural", seed, epoch)

    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> LossSum:
        """The summed loss of a batch."""
        return self.loss_of(model(inputs), inputs, targets)

    @abstractmethod
    def loss_of(self, scores: Tensor, inputs: Inputs, targets: Tensor) -> LossSum:
        """The summed loss of a batch of which the model has given these scores."""

    def distilled(
        self, scores: Tensor, teacher: Tensor, inputs: Inputs, targets: Tensor, temperature: float
    ) -> LossSum:
        """How far a model's scores are from those of a teacher, of the same batch: summed, at a temperature where they
        are probabilities. Counts as many labels as the loss. Raises BertsmithError for a kind that has no such."""
        raise BertsmithError(f"{self.kind} does not learn from a teacher", "task", "use finetune")

    @classmethod
    def can_be_distilled(cls) -> bool:
        """Whether a model learns from the scores of a larger one."""
        return cls.distilled is not Task.distilled

    @abstractmethod
    def evaluate(self, scores: Floats, examples: Examples) -> dict[str, float]:
        """Every metric, of the model's scores for all sequences (`Runner.scores`)."""

    def start(self, model: nn.Module, fresh: bool) -> None:
        """Makes a model with weights ready to learn. fresh: its head has random weights."""

    def finish(self, model: nn.Module) -> None:
        """Makes a model that has learned one that every program reads, which gives the same scores."""

    def tuned(self, scores: Floats, examples: Examples) -> Self:
        """The task with what is fitted to the dev rows after training, such as thresholds."""
        return self

    @property
    def tunes_each_time(self) -> bool:
        """Whether the dev rows are measured by `cross_fitted` while the model trains, too."""
        return False

    def put_into(self, model: nn.Module) -> Self:
        """Puts what was fitted into the weights where these can hold it, so that every program that reads the folder
        gives the same scores. The task of such weights."""
        return self

    def cross_fitted(self, scores: Floats, examples: Examples) -> dict[str, float]:
        """The metrics of the dev rows by thresholds tuned on other dev rows, over 5 folds; {} where none is tuned."""
        return {}

    @abstractmethod
    def baseline(self, metric: str, examples: Examples) -> float:
        """A metric of the best answer that does not look at the text (`baseline_name`)."""

    @abstractmethod
    def description(self) -> list[str]:
        """Facts about labels and metrics for the log before training, one per line."""

    def config(self) -> dict[str, Any]:
        """Keys of config.json, beside those of the encoder."""
        return {}

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Keys of task.json."""

    def folder_files(self, config: BertConfig, max_length: int) -> dict[str, Any]:
        """Further files of the model folder, as JSON, by name. max_length: the most tokens of a sequence."""
        return {}

    def shown(self, record: Record) -> str:
        """The truth of a record, for a person."""
        return str(record.label)

    @abstractmethod
    def answers_of(self, scores: Floats, records: Sequence[Record], sequences: Sequences) -> list[Answer]:
        """An answer for each record, from the model's scores for all sequences."""

    def outputs(self, model: nn.Module, sequences: Sequences, runner: Runner) -> list[Floats]:
        """float32[C] each, or float32[length, C] with `per_token`."""
        scores = runner.scores(model, sequences, self.per_token)
        return np.split(scores, np.cumsum(sequences.lengths)[:-1]) if self.per_token else list(scores)

    def answers_from(self, outputs: Sequence[Any], records: Sequence[Record], sequences: Sequences) -> list[Answer]:
        scores = np.concatenate(outputs) if self.per_token else np.stack(outputs)
        return self.answers_of(scores, records, sequences)

    @abstractmethod
    def write(self, scores: Floats, examples: Examples, folder: Path) -> None:
        """The report of the dev or the test rows, and files of this kind alone, into a folder that is made."""
