"""Pieces for the [MASK]s of rows of text, from a pre-trained model: what it answers without fine-tuning.

Legend: M masked words, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from bertsmith.base.errors import BertsmithError
from bertsmith.model.config import BertConfig
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.tasks.reading.records import Columns, Record, Row
from bertsmith.tasks.sequences import Inputs, Ints, Sequences, by_length, pack
from bertsmith.tasks.task import Answer, Answering, Floats, FolderFacts, Runner, refuse_not_finite
from bertsmith.tokens.tokenizer import Tokenizer

MASK = "[MASK]"


@runtime_checkable
class ScoresPieces(Protocol):
    """A model of masked words."""

    def piece_scores(self, inputs: Inputs, slots: Tensor) -> Tensor:
        """Scores of every piece at some tokens of a batch: int64[M] -> [M, V]."""


class WordModel(PretrainingModel):
    """BERT with its pre-training heads, asked for words."""

    def piece_scores(self, inputs: Inputs, slots: Tensor) -> Tensor:
        """[M, V], see `ScoresPieces`."""
        ids = (inputs.input_ids, inputs.token_type_ids, inputs.position_ids)
        hidden = self.encoder(*ids, inputs.packed, rows=slots)
        return self.masked_logits(hidden, torch.arange(len(slots), device=slots.device))


@dataclass(frozen=True)
class MaskedWords(Answering):
    """top: how many guesses a mask gets."""

    name = "masked words"
    architectures = ("BertForPreTraining", "BertForMaskedLM")
    may_be_fresh = ("encoder.pooler", "next_sentence")  # neither has a part in predicting words
    literal_specials = True
    remedy = f"this model is only pre-trained, and gives words for each {MASK}: `bertsmith finetune` makes a classifier"

    tokenizer: Tokenizer
    top: int

    @classmethod
    def of_folder(cls, facts: FolderFacts) -> Self:
        return cls(facts.tokenizer, min(facts.top, facts.tokenizer.size))

    @classmethod
    def record(cls, row: Row | str, columns: Columns, labelled: bool, where: str) -> Record:
        """A row without a mask is refused."""
        record = super().record(row, columns, labelled, where)
        if not _masks(record):
            raise ValueError(f"there is no {MASK} in this row: put one for a word")
        return record

    def build(self, config: BertConfig, compute: torch.dtype | None) -> WordModel:
        return WordModel(config, compute)

    def outputs(self, model: nn.Module, sequences: Sequences, runner: Runner) -> list[list[list[dict[str, Any]]]]:
        """For each mask of a sequence, in order, the likeliest pieces with their probabilities."""
        assert isinstance(model, ScoresPieces)
        guesses: list[list[list[dict[str, Any]]]] = [[] for _ in sequences.ids]
        not_finite: list[Ints] = []
        for members in by_length(sequences, runner.budget_tokens):
            runner.between()
            rows, probabilities, pieces = self._guess(model, sequences, members, runner.device)
            not_finite.append(rows[~np.isfinite(probabilities).all(1)])
            for row, likeliest, shares in zip(rows, pieces, probabilities, strict=True):
                both = zip(likeliest, shares, strict=True)
                named = [{"piece": self.tokenizer.pieces[piece], "probability": float(p)} for piece, p in both]
                guesses[row].append(named)
        refuse_not_finite(np.concatenate([*not_finite, np.zeros(0, dtype=np.int64)]))
        return guesses

    def answers_from(self, outputs: Sequence[Any], records: Sequence[Record], sequences: Sequences) -> list[Answer]:
        """{"guesses"} for each row: those of its masks."""
        return [{"guesses": each} for each in outputs]

    @torch.no_grad()
    def _guess(
        self, model: ScoresPieces, sequences: Sequences, members: Ints, device: torch.device
    ) -> tuple[Ints, Floats, Ints]:
        """Row, probabilities and pieces of every mask of a batch: int64[M], float32[M, top], int64[M, top]."""
        inputs = pack(sequences, members, device)
        slots = (inputs.input_ids[: inputs.asked.tokens] == self.tokenizer.special.mask).nonzero()[:, 0]
        logits = model.piece_scores(inputs, slots)[:, : self.tokenizer.size]
        top = logits.float().softmax(-1).topk(self.top)
        probabilities = top.values.cpu().numpy()
        rows = np.repeat(members, inputs.asked.lengths)[slots.cpu().numpy()]
        return rows, probabilities, top.indices.cpu().numpy()

    def check_rows(self, records: Sequence[Record], sequences: Sequences) -> None:
        """Raises BertsmithError at a row without a mask, and at one whose mask was truncated."""
        for record, ids in zip(records, sequences.ids, strict=True):
            if int(np.sum(ids == self.tokenizer.special.mask)) < _masks(record):
                what = f"a {MASK} of this row lies past the tokens that the model reads"
                raise BertsmithError(what, record.where, "shorten the text")


def _masks(record: Record) -> int:
    return f"{record.text} {record.text_b or ''}".count(MASK)
