"""Micro-batches of a fixed shape as rows of whole numbers: a compiled step copies one to the device for each.

Legend: T token slots, S sequences, M masked slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bertsmith.base.layout import Ints
from bertsmith.batches.packing import PretrainBatch
from bertsmith.model.attention.packed import Offsets
from bertsmith.model.config import BertConfig
from bertsmith.model.pretraining import PretrainInputs, PretrainLosses


@dataclass(frozen=True)
class Shape:
    """T, S, M and the most slots of a sequence."""

    tokens: int
    sequences: int
    masked: int
    longest: int

    @classmethod
    def of(cls, batch: PretrainBatch) -> Shape:
        """That of a micro-batch."""
        return cls(len(batch.input_ids), batch.layout.sequences, len(batch.masked_positions), batch.layout.longest)

    def offsets(self) -> Offsets:
        """Those of a batch of this shape; their values are of no concern."""
        return Offsets(torch.zeros(self.sequences + 1, dtype=torch.int32), self.tokens, self.longest)

    @property
    def parts(self) -> list[int]:
        """How many numbers each part of a row has, in the order of `row_of`."""
        return [*[self.tokens] * 3, self.sequences + 1, *[self.masked] * 2, self.sequences, len(PretrainLosses._fields)]


def row_of(batch: PretrainBatch, counts: Mapping[str, int]) -> Ints:
    """A micro-batch and the counts of its step as one row: int64[3 T + S + 1 + 2 M + S + 2]."""
    numbers = np.array([counts[name] for name in PretrainLosses._fields])
    return np.concatenate(
        (
            *(batch.input_ids, batch.token_type_ids, batch.position_ids, batch.layout.offsets),
            *(batch.masked_positions, batch.masked_labels, batch.next_sentence_labels, numbers),
        )
    )


def inputs_of(row: Tensor, shape: Shape) -> tuple[PretrainInputs, Tensor]:
    """What the model takes, and the counts, int64[2]."""
    ids, kinds, positions, offsets, masked, labels, next_sentence, counts = torch.split(row, shape.parts)
    where = Offsets(offsets.int(), shape.tokens, shape.longest)
    return PretrainInputs(ids, kinds, positions, where, masked, labels, next_sentence), counts


def other_row(shape: Shape, counts: Mapping[str, int], config: BertConfig) -> Ints:
    """A micro-batch of random numbers that differs from any of texts in every part: sequences of about one length, as
    many as there is room for, and counts that are twice these."""
    draw = np.random.default_rng(0)
    ids, kinds, positions = (
        draw.integers(below, size=shape.tokens) for below in (config.vocab_size, config.type_vocab_size, shape.longest)
    )
    offsets = np.arange(shape.sequences + 1) * shape.tokens // shape.sequences
    masked = draw.permutation(shape.tokens)[: shape.masked]  # no slot twice, as its gradients would come in any order
    labels, next_sentence = draw.integers(config.vocab_size, size=shape.masked), draw.integers(2, size=shape.sequences)
    numbers = np.array([2 * counts[name] + 1 for name in PretrainLosses._fields])
    return np.concatenate((ids, kinds, positions, offsets, masked, labels, next_sentence, numbers))
