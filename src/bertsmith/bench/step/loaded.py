"""Steps over batches that a loader makes while they are taken: what a training loop waits for data.

The text is made up, of documents with sentences about as long as Wikipedia's: what a batch costs depends on lengths.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bertsmith.batches.epochs import Epochs
from bertsmith.batches.loader import Loader
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.order import Order
from bertsmith.batches.shapes import FixedShapes
from bertsmith.batches.steps import StepBuilder
from bertsmith.bench.step.ours import OurSteps
from bertsmith.corpus.shards import Shard, ShardInfo, offsets_of
from bertsmith.tokens.special_ids import SpecialIds, token_dtype
from bertsmith.training.records.late_reading import LateReading

_SPECIAL_IDS = {"pad": 0, "unknown": 1, "cls": 2, "sep": 3, "mask": 4}
_SENTENCE_TOKENS, _DOCUMENT_SENTENCES = (4, 50), (2, 40)
_NOT_COUNTED, _ROOM = 2, 0.95
"""Steps before the clock runs, in which the epoch is drawn; the share of the slots that real tokens are to take."""


@dataclass(frozen=True)
class MadeText:
    """A `ShardSource` of one shard in memory with about so many random tokens."""

    tokens: int
    vocabulary: int

    @property
    def special(self) -> SpecialIds:
        return SpecialIds(**_SPECIAL_IDS, vocabulary_size=self.vocabulary)

    @property
    def is_continuation(self) -> NDArray[np.bool_]:
        return np.zeros(self.vocabulary, np.bool_)

    def shards(self, split: str) -> list[ShardInfo]:
        shard = self._shard
        counts = len(shard.document_offsets) - 1, len(shard.sentence_offsets) - 1
        return [ShardInfo("00000", *counts, len(shard.tokens))]

    def open_shard(self, split: str, index: int) -> Shard:
        return self._shard

    @cached_property
    def _shard(self) -> Shard:
        draw = np.random.default_rng(0)
        documents = 1 + 2 * self.tokens // (sum(_SENTENCE_TOKENS) * sum(_DOCUMENT_SENTENCES) // 2)
        sentences = draw.integers(*_DOCUMENT_SENTENCES, documents)
        lengths = draw.integers(*_SENTENCE_TOKENS, int(sentences.sum()))
        words = draw.integers(len(_SPECIAL_IDS), self.vocabulary, int(lengths.sum()))
        return Shard(words.astype(token_dtype(self.vocabulary)), offsets_of(lengths), offsets_of(sentences))


def data_wait_share(ours: OurSteps, like: int, vocabulary: int, steps: int) -> float | None:
    """The share of the time of `steps` steps in which the loop waited for batches, which a thread makes as training's
    loader does by default. like: the number of a batch whose shape theirs have. Each step waits, as training does,
    for the figures of the one before. None where the batch's shape has room for half of these sequences at the most,
    as that of full ones."""
    batch = ours.batches[like]
    slots, longest = len(batch.input_ids), int(batch.layout.longest)
    order = Order(
        Epochs(
            MadeText(2 * (steps + _NOT_COUNTED) * slots, vocabulary), seed=0, phase="loaded", sequence_length=longest
        )
    )
    sequences = max(1, int(_ROOM * slots / order.epoch(0).lengths.mean()))
    shapes = None
    if ours.compilations is not None:
        masked = len(batch.masked_positions)
        shapes = FixedShapes(slots, batch.layout.sequences, masked, longest, micro_batches=1, expected_fill=_ROOM)
        # What a micro-batch lacks of its slots is filled by the longest sequences: n real ones of mean length m leave
        # (slots - n m) / longest of these, and together they must not be more than the shape has.
        shorter = 1 - float(order.epoch(0).lengths.mean()) / longest
        fitting = int(_ROOM * (batch.layout.sequences - slots / longest) / max(shorter, 1e-9))
        if fitting < sequences / 2:
            return None
        sequences = min(sequences, fitting)
    builder = StepBuilder(order, sequences, MaskingSettings(), micro_batch_tokens=slots, shapes=shapes)
    late: LateReading | None = None
    with Loader(builder, start_step=0, stop_step=_NOT_COUNTED + steps) as loader:
        for step in loader:
            if step.number == _NOT_COUNTED:
                began, waited = time.perf_counter(), loader.waited_seconds
            sums = ours.take(step.micro_batches, step.counts)
            assert sums is not None
            if late is not None:
                late.read()
            late = LateReading(sums.figures)
        assert late is not None
        late.read()
        return (loader.waited_seconds - waited) / (time.perf_counter() - began)
