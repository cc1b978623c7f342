"""What a task is: the one contract between fine-tuning, prediction, and whatever else uses a task's model.

A task says how rows are encoded, which model stands on the encoder, its loss, its metrics, how scores become answers,
and what the model folder must hold. An instance of it knows its labels. Legend: N rows, S sequences, C classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.base import ranks
from bertsmith.base.errors import BertsmithError
from bertsmith.model.config import BertConfig
from bertsmith.model.losses import LossSum
from bertsmith.tasks.records import Record
from bertsmith.tasks.sequences import Inputs, Sequences, by_length, encode, pack
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tokens.tokenizer import Tokenizer

Answer = dict[str, Any]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class FolderFacts:
    """What a model folder says of its task. config: its config.json. task: its task.json, {} where there is none.
    tokenizer: its tokenizer. top: how many guesses a masked word gets."""

    config: Mapping[str, Any]
    task: Mapping[str, Any]
    tokenizer: Tokenizer
    top: int = 5


class Answering(ABC):
    """A kind of model that answers rows of text.

    architectures: the classes of `transformers` that a folder of this kind may name. may_be_fresh: parts that a folder
    may lack. literal_specials: whether "[MASK]" in a text is the mask. pairs: whether rows have two texts; None where
    that is not known.
    """

    architectures: ClassVar[tuple[str, ...]]
    may_be_fresh: ClassVar[Collection[str]] = ()
    literal_specials: ClassVar[bool] = False
    pairs: bool | None = None

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
        return encode(records, tokenizer, max_length, self.literal_specials)

    @abstractmethod
    def answers(
        self, model: nn.Module, records: Sequence[Record], sequences: Sequences, runner: Runner
    ) -> list[Answer]:
        """An answer for each record, in their order. The model must be in evaluation mode."""

    @abstractmethod
    def cells(self, answer: Answer) -> dict[str, str]:
        """An answer as named cells of a table."""


@dataclass(frozen=True)
class Runner:
    """How a model is run over many rows.

    budget_tokens: the most that go through it at once. over_ranks: every rank runs a share of them, and all get all
    scores; then all must call it alike.
    """

    device: torch.device
    budget_tokens: int
    over_ranks: bool = False

    @torch.no_grad()
    def scores(self, model: nn.Module, sequences: Sequences) -> Floats:
        """One row of scores for each sequence, in their order: float32[S, C]. The model must be in evaluation mode."""
        order = list(by_length(sequences, self.budget_tokens))
        ours = order[ranks.rank() :: ranks.world_size()] if self.over_ranks else order
        rows = [model(pack(sequences, members, self.device)).float().cpu().numpy() for members in ours]
        if self.over_ranks:
            everyone = ranks.gathered(rows)
            rows = [everyone[place % len(everyone)][place // len(everyone)] for place in range(len(order))]
        if not rows:
            return np.zeros((0, 0), dtype=np.float32)
        found = np.concatenate(rows)
        if not np.isfinite(found).all():
            fix = "use --precision fp32, or train again with a lower learning rate"
            raise BertsmithError("the model's scores are not finite (NaN or infinity)", "the model", fix)
        scores = np.empty_like(found)
        scores[np.concatenate(order)] = found
        return scores


class Task(Answering):
    """A kind of model that is fine-tuned on labelled rows.

    kind: its name on the command line. architecture: the class of `transformers` that reads its folder. head: the
    module of its model that is fresh. counts: training rows of each label, the most frequent first.
    """

    kind: ClassVar[str]
    architecture: ClassVar[str]
    head: ClassVar[str]
    counts: Mapping[str, int] | None = None

    @classmethod
    @abstractmethod
    def of_records(cls, records: Sequence[Record], settings: FinetuneSettings) -> Self:
        """The task that training rows define. Raises BertsmithError for labels that do not fit it."""

    @abstractmethod
    def targets(self, records: Sequence[Record]) -> NDArray[Any]:
        """The expected output for each record: [N]. Raises BertsmithError at a label that the training rows lack."""

    def labels(self, targets: NDArray[Any]) -> int:
        """How many labels the loss of these targets sums over."""
        return len(targets)

    @abstractmethod
    def loss(self, model: nn.Module, inputs: Inputs, targets: Tensor) -> LossSum:
        """The summed loss of a batch."""

    @abstractmethod
    def evaluate(self, scores: Floats, targets: NDArray[Any]) -> dict[str, float]:
        """Every metric."""

    @abstractmethod
    def baseline(self, metric: str, targets: NDArray[Any]) -> float:
        """A metric of the best answer that does not look at the text."""

    @abstractmethod
    def description(self) -> list[str]:
        """Facts about labels and metrics for the log before training, one per line."""

    @abstractmethod
    def config(self) -> dict[str, Any]:
        """Keys of config.json."""

    @abstractmethod
    def facts(self) -> dict[str, Any]:
        """Keys of task.json."""

    @abstractmethod
    def label_of(self, target: Any) -> str:
        """A target as the user wrote it."""


def check_pairs(records: Sequence[Record], pairs: bool) -> None:
    """Raises BertsmithError at the first record that has one text where two are wanted, or two where one is."""
    for record in records:
        if (record.text_b is not None) != pairs:
            found, wanted = ("two texts", "one") if record.text_b is not None else ("one text", "two")
            fix = "name the column of the second text with --columns.text-b" if pairs else "remove the second text"
            raise BertsmithError(f"this row has {found}, and the training rows have {wanted}", record.where, fix)
