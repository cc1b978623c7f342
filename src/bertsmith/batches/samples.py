"""Instances of a corpus as text, exactly as a model sees them: both segments, what is masked, and the labels."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith.base.layout import IGNORED_LABEL
from bertsmith.batches.epochs import Epochs
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.order import Order
from bertsmith.batches.packing import PretrainBatch
from bertsmith.batches.pairs import IS_NEXT
from bertsmith.batches.steps import build_batch
from bertsmith.corpus.shards import Corpus, Shard, ShardInfo
from bertsmith.tokens.special_ids import SpecialIds
from bertsmith.tokens.tokenizer import Tokenizer

_COLUMNS = 116
_LEGEND = "  {seen|true} is a piece to predict: hidden behind [MASK], replaced at random, or left as it is"


@dataclass(frozen=True)
class OneShard:
    """One shard of a corpus as a source, so that no index of a whole epoch is built for a few instances."""

    corpus: Corpus
    number: int

    @property
    def special(self) -> SpecialIds:
        return self.corpus.special

    @property
    def is_continuation(self) -> NDArray[np.bool_]:
        return self.corpus.is_continuation

    def shards(self, split: str) -> list[ShardInfo]:
        return self.corpus.shards(split)[self.number : self.number + 1]

    def open_shard(self, split: str, index: int) -> Shard:
        return self.corpus.open_shard(split, self.number + index)


def show_instances(corpus: Corpus, count: int = 3, sequence_length: int = 128, seed: int = 0) -> str:
    """`count` instances of the middle shard of the train split (of the held-out split if all documents are held out).

    Raises BertsmithError for a sequence length that is impossible for pairs.
    """
    split = "train" if corpus.documents("train") else "held_out"
    source = OneShard(corpus, len(corpus.shards(split)) // 2)
    order = Order(Epochs(source, split=split, seed=seed, phase="samples", sequence_length=sequence_length))
    count = min(count, order.epoch(0).size)
    if not count:
        return ""
    batch = build_batch(order.epochs, order.instances(0, count), MaskingSettings())
    name = source.shards(split)[0].name
    heading = f"sample instances of {split}/{name} at sequence length {sequence_length}, drawn anew in every epoch"
    return "\n".join([heading, _LEGEND, *_all_shown(batch, corpus.tokenizer())])


def show_instances_from(
    order: Order, tokenizer: Tokenizer, first: int, count: int, masking: MaskingSettings, global_batch: int
) -> str:
    """`count` instances from position `first` of an order, masked as a run of steps of `global_batch` masks them."""
    lines = [
        f"instances {first:,} to {first + count - 1:,} of phase {order.epochs.phase}, in the order of the run",
        _LEGEND,
    ]
    for step in range(first // global_batch, -(-(first + count) // global_batch)):
        begin, end = max(first, step * global_batch), min(first + count, (step + 1) * global_batch)
        batch = build_batch(order.epochs, order.instances(begin, end - begin), masking.of_step(step))
        lines += [f"step {step + 1:,} of the phase, from instance {begin:,}:", *_all_shown(batch, tokenizer)]
    return "\n".join(lines)


def _all_shown(batch: PretrainBatch, tokenizer: Tokenizer) -> list[str]:
    return [line for each in range(batch.layout.sequences) for line in _shown(batch, each, tokenizer)]


def _shown(batch: PretrainBatch, sequence: int, tokenizer: Tokenizer) -> list[str]:
    """One sequence: a line about its labels, then each segment with its special pieces."""
    begin, end = batch.layout.offsets[sequence : sequence + 2].tolist()
    masked = slice(*np.searchsorted(batch.masked_positions, (begin, end)))
    true = dict(zip(batch.masked_positions[masked].tolist(), batch.masked_labels[masked].tolist(), strict=True))
    segments: tuple[list[str], list[str]] = ([], [])
    for slot in range(begin, end):
        piece = tokenizer.pieces[batch.input_ids[slot]]
        if slot in true:
            piece = f"{{{piece}|{tokenizer.pieces[true[slot]]}}}"
        segments[batch.token_type_ids[slot]].append(piece)
    label = int(batch.next_sentence_labels[sequence])
    heading = f"  {end - begin} pieces, {len(true)} of them to predict"
    if label != IGNORED_LABEL:
        heading += f"; next sentence label {label}: {'B follows A' if label == IS_NEXT else 'B is random'}"
    lines = [heading]
    for letter, pieces in zip("AB", segments, strict=True):
        if not pieces:
            continue  # objective mlm: there is no second segment
        lines += textwrap.wrap(
            " ".join(pieces),
            _COLUMNS,
            initial_indent=f"    {letter}  ",
            subsequent_indent="       ",
            break_on_hyphens=False,
            break_long_words=False,
        )
    return lines
