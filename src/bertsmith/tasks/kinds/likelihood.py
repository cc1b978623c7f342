"""How likely texts are to a pre-trained model: the pseudo-log-likelihood of Salazar et al. (2020).

Each token is masked in turn, and the log probability of what stands there is summed; [CLS] and [SEP] are not scored.
Left to right within words (Kauf and Ivanova, 2023), the later pieces of its word are masked with it: a word of many
pieces would else be likely because they give each other away.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertsmith.base.layout import ranges
from bertsmith.model.config import BertConfig
from bertsmith.tasks.kinds.masked_words import ScoresPieces, WordModel
from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.sequences import Ints, Sequences, pack
from bertsmith.tasks.task import Answer, Answering, FolderFacts, Runner, check_finite
from bertsmith.tokens.tokenizer import Tokenizer

# Scores of all pieces for so many tokens fit into memory, however short the texts are.
_COPIES_AT_ONCE = 512


@dataclass(frozen=True)
class Likelihood(Answering):
    """A kind for the folders of `MaskedWords`. left_to_right: within words."""

    name = "likelihood"
    architectures = ("BertForPreTraining", "BertForMaskedLM")
    may_be_fresh = ("encoder.pooler", "next_sentence")

    tokenizer: Tokenizer
    left_to_right: bool = False

    @classmethod
    def of_folder(cls, facts: FolderFacts) -> Self:
        return cls(facts.tokenizer)

    def build(self, config: BertConfig, compute: torch.dtype | None) -> WordModel:
        return WordModel(config, compute)

    def outputs(self, model: nn.Module, sequences: Sequences, runner: Runner) -> list[NDArray[np.float64]]:
        """The log probability of each token of a sequence, 0 for those that are not scored: float64[length] each."""
        assert isinstance(model, ScoresPieces)
        found = [np.zeros(len(ids)) for ids in sequences.ids]
        for members, positions in self._batches(sequences, runner.budget_tokens):
            runner.between()
            scored = self._scored(model, sequences, members, positions, runner.device)
            for member, position, value in zip(members.tolist(), positions.tolist(), scored.tolist(), strict=True):
                found[member][position] = value
        check_finite(np.concatenate(found), np.repeat(np.arange(len(found)), sequences.lengths))
        return found

    def answers_from(self, outputs: Sequence[Any], records: Sequence[Record], sequences: Sequences) -> list[Answer]:
        """{"log_likelihood", "tokens", "per_token", "pieces"} for each row: the sum over its tokens, how many these
        are, their mean (None for no tokens), and each piece with its own."""
        return [self._answer(*each) for each in zip(sequences.ids, outputs, strict=True)]

    def _answer(self, ids: Ints, values: NDArray[np.float64]) -> Answer:
        places = self._scored_places(ids)
        total = float(values.sum())
        pieces = [
            {"piece": self.tokenizer.pieces[ids[place]], "log_likelihood": float(values[place])} for place in places
        ]
        per_token = total / len(places) if len(places) else None
        return {"log_likelihood": total, "tokens": len(places), "per_token": per_token, "pieces": pieces}

    def _scored_places(self, ids: Ints) -> Ints:
        special = self.tokenizer.special
        return np.flatnonzero((ids != special.cls) & (ids != special.sep))

    def _batches(self, sequences: Sequences, budget_tokens: int) -> Iterator[tuple[Ints, Ints]]:
        """(sequence, masked position) of every copy of a batch, longest first, within the budget: int64[M] each."""
        order = np.argsort(-sequences.lengths, kind="stable")
        places = [self._scored_places(sequences.ids[member]) for member in order]
        members = np.repeat(order, [len(each) for each in places])
        positions = np.concatenate([*places, np.zeros(0, dtype=np.int64)])
        start = 0
        while start < len(members):
            end = start + min(_COPIES_AT_ONCE, max(1, budget_tokens // int(sequences.lengths[members[start]])))
            yield members[start:end], positions[start:end]
            start = end

    @torch.no_grad()
    def _scored(
        self, model: ScoresPieces, sequences: Sequences, members: Ints, positions: Ints, device: torch.device
    ) -> NDArray[np.float64]:
        """The log probability of what stands at a position of each member, masked there: float64[M]."""
        inputs = pack(sequences, members, device)
        places = inputs.asked.offsets[:-1] + positions
        slots = torch.from_numpy(places).to(device)
        truths = inputs.input_ids[slots]
        hidden = torch.from_numpy(ranges(places, self._hidden(sequences, members, positions))).to(device)
        inputs.input_ids[hidden] = self.tokenizer.special.mask
        logits = model.piece_scores(inputs, slots)[:, : self.tokenizer.size]
        found = logits.float().log_softmax(-1).gather(1, truths[:, None])[:, 0]
        return found.cpu().numpy().astype(np.float64)

    def _hidden(self, sequences: Sequences, members: Ints, positions: Ints) -> Ints:
        """How many pieces are masked of each member, from its position on: int64[M]."""
        if not self.left_to_right:
            return np.ones_like(positions)
        ends = {int(member): self._word_ends(sequences.ids[member]) for member in np.unique(members)}
        found = [ends[member][position] for member, position in zip(members.tolist(), positions.tolist(), strict=True)]
        return np.array(found, dtype=np.int64) - positions

    def _word_ends(self, ids: Ints) -> Ints:
        """The position after the word that each piece belongs to: int64[length]."""
        begins = np.append(np.flatnonzero(~self.tokenizer.is_continuation[ids]), len(ids))
        return begins[np.searchsorted(begins, np.arange(len(ids)), side="right")]
