"""Records as token sequences, and sequences as packed batches.

Legend: S sequences, T token slots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.base.errors import BertsmithError
from bertsmith.base.layout import Layout
from bertsmith.model.attention.packed import Packed
from bertsmith.model.config import BertConfig
from bertsmith.tasks.records import Record
from bertsmith.tokens.tokenizer import Tokenizer, truncated_lengths

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Truncated:
    """How many rows lost tokens, and how many tokens these were."""

    rows: int
    tokens: int


@dataclass(frozen=True)
class Sequences:
    """S sequences of tokens.

    ids: int64[length] each, [CLS] a [SEP] or [CLS] a [SEP] b [SEP]. first_segments: int64[S], the tokens up to and with
    the first [SEP], whose token type is 0. lost_tokens: int64[S], how many were cut from each.
    """

    ids: list[Ints]
    first_segments: Ints
    lost_tokens: Ints

    @cached_property
    def lengths(self) -> Ints:
        """int64[S]."""
        return np.array([len(each) for each in self.ids], dtype=np.int64)

    @property
    def truncated(self) -> Truncated:
        """How much was cut."""
        return Truncated(int(np.count_nonzero(self.lost_tokens)), int(self.lost_tokens.sum()))

    def truncation(self) -> str:
        """What was cut, in words."""
        cut = self.truncated
        share = cut.tokens / max(1, cut.tokens + int(self.lengths.sum()))
        return f"{cut.rows:,} of {len(self.ids):,} rows truncated, {share:.1%} of the tokens lost"


@dataclass(frozen=True)
class Inputs:
    """A packed batch on the device. input_ids, token_type_ids, position_ids: int64[T].

    asked: the layout of the sequences asked for; behind them may lie some that fill the batch to a round size.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    packed: Packed
    asked: Layout


def load_tokenizer(folder: Path, config: BertConfig) -> Tokenizer:
    """The tokenizer of a model folder. Raises BertsmithError where it has pieces that the model has no embedding of."""
    tokenizer = Tokenizer.load(folder)
    if tokenizer.size > config.vocab_size:
        raise BertsmithError(
            f"the tokenizer has {tokenizer.size:,} pieces and the model {config.vocab_size:,}",
            folder,
            "use the tokenizer that the model was trained with",
        )
    return tokenizer


def encode(
    records: Sequence[Record], tokenizer: Tokenizer, max_length: int, literal_specials: bool = False
) -> Sequences:
    """The sequences of records, at most `max_length` tokens each.

    What is too long loses tokens at the end of the longer text, one by one, as in Google's run_classifier.py.
    literal_specials: "[MASK]" in a text becomes the mask's id.
    """
    special = tokenizer.special
    firsts = tokenizer.encode_ids([record.text for record in records], literal_specials)
    texts_b = [record.text_b for record in records if record.text_b is not None]
    seconds = iter(tokenizer.encode_ids(texts_b, literal_specials))
    ids, first_segments, truncated = [], [], []
    for record, first in zip(records, firsts, strict=True):
        parts = [first] if record.text_b is None else [first, next(seconds)]
        lengths = [len(part) for part in parts]
        kept = truncated_lengths(lengths[0], sum(lengths[1:]), max_length - 1 - len(parts))[: len(parts)]
        sequence = [np.array([special.cls])]
        for part, length in zip(parts, kept, strict=True):
            sequence += [part[:length].astype(np.int64), np.array([special.sep])]
        ids.append(np.concatenate(sequence))
        first_segments.append(kept[0] + 2)
        truncated.append(sum(lengths) - sum(kept))
    return Sequences(ids, np.array(first_segments, dtype=np.int64), np.array(truncated, dtype=np.int64))


def pack(sequences: Sequences, members: Ints, device: torch.device) -> Inputs:
    """The sequences `members` (int64[S]) one after another, without padding; on a CPU filled to a round size."""
    asked = Layout.from_lengths(sequences.lengths[members])
    layout = asked.filled() if device.type == "cpu" else asked
    filling = layout.tokens - asked.tokens
    kinds = asked.positions >= np.repeat(sequences.first_segments[members], asked.lengths)
    ids = [sequences.ids[member] for member in members]

    def tensor(values: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(values).to(device, non_blocking=True)

    return Inputs(
        input_ids=tensor(np.concatenate((*ids, np.zeros(filling, np.int64)))),
        token_type_ids=tensor(np.concatenate((kinds.astype(np.int64), np.zeros(filling, np.int64)))),
        position_ids=tensor(layout.positions),
        packed=Packed(layout, device),
        asked=asked,
    )


def by_length(sequences: Sequences, budget_tokens: int) -> Iterator[Ints]:
    """Batches for a pass without training: sequences of like lengths together, longest first, within a token budget.

    Yields int64[S] indices; a sequence that is longer than the budget goes alone.
    """
    batch: list[int] = []
    tokens = 0
    for index in np.argsort(-sequences.lengths, kind="stable"):
        length = int(sequences.lengths[index])
        if batch and tokens + length > budget_tokens:
            yield np.array(batch, dtype=np.int64)
            batch, tokens = [], 0
        batch.append(int(index))
        tokens += length
    if batch:
        yield np.array(batch, dtype=np.int64)
