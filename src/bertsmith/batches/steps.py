"""The content of a step: the next B instances, dealt to ranks and micro-batches, packed and masked.

Which instances a step has, and how each is masked, depends on the order alone; ranks and budgets only distribute them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertsmith.base.errors import BertsmithError
from bertsmith.base.layout import Ints, deal_within
from bertsmith.base.log import warn
from bertsmith.batches.epoch_index import References
from bertsmith.batches.epochs import Epochs, ShardSource
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.order import Order
from bertsmith.batches.packing import Part, PretrainBatch, fill_fixed, pack
from bertsmith.batches.pairs import Account, PairSettings
from bertsmith.batches.shapes import FixedShapes, deal_fixed


@dataclass(frozen=True)
class StepTotals:
    """Counts of a whole step over all ranks, which every rank knows without communication. tokens: slots, special
    pieces included. masked: pieces to predict. pairs: sequences of two segments."""

    sequences: int
    tokens: int
    masked: int
    pairs: int


@dataclass(frozen=True)
class Step:
    """One optimizer step of one rank.

    number: from 0. micro_batches: the same number on every rank; one may be empty if a step has fewer sequences than
    all ranks have micro-batches. started_epochs: the epochs that start in this step, with their accounts. ends_epoch:
    whether the next step has instances of an epoch that this one has none of.
    """

    number: int
    micro_batches: tuple[PretrainBatch, ...]
    totals: StepTotals
    started_epochs: tuple[tuple[int, Account], ...]
    ends_epoch: bool

    @property
    def tokens(self) -> int:
        """Of the whole step."""
        return self.totals.tokens

    @property
    def sequences(self) -> int:
        """Of the whole step."""
        return self.totals.sequences

    @property
    def counts(self) -> dict[str, int]:
        """Labels of each loss in the whole step, by the names of `PretrainLosses`."""
        return {"masked": self.totals.masked, "next_sentence": self.totals.pairs}

    @property
    def where(self) -> str:
        """The step's instances, for messages."""
        first = self.number * self.totals.sequences
        return f"instances {first:,} to {first + self.totals.sequences - 1:,} of the phase"


@dataclass(frozen=True)
class StepBuilder:
    """Builds any step of a run for one rank. global_batch: sequences per step over all ranks. micro_batch_tokens: the
    most slots of a micro-batch (a longer sequence gets its own). shapes: with compiled steps, the shape that every
    micro-batch is filled up to instead."""

    order: Order
    global_batch: int
    masking: MaskingSettings
    micro_batch_tokens: int
    rank: int = 0
    ranks: int = 1
    shapes: FixedShapes | None = None

    def __post_init__(self) -> None:
        check_global_batch(self.global_batch, self.ranks)
        if self.masking.whole_words:
            _ = self.order.epochs.source.is_continuation  # read here, once for all that build steps

    def reach(self, number: int) -> None:
        """Has the indices that step `number` needs made, where they are not there."""
        self.order.reach(number * self.global_batch, self.global_batch)

    def build(self, number: int) -> Step:
        """Step `number`, counted from 0: instances number * B to (number + 1) * B of the run."""
        first = number * self.global_batch
        references = self.order.instances(first, self.global_batch)
        masking = self.masking.of_step(number)
        bins = self._deal(references.lengths, masking)
        each = len(bins) // self.ranks
        ours = bins[self.rank * each : (self.rank + 1) * each]
        return Step(
            number,
            tuple(self._micro_batch(references[members], masking) for members in ours),
            totals(references, masking, self.order.epochs.pairs),
            self._started_epochs(references, first),
            self.order.epoch_start(int(references.epochs[-1]) + 1) < first + 2 * self.global_batch,
        )

    def _deal(self, lengths: Ints, masking: MaskingSettings) -> list[Ints]:
        if self.shapes is None:
            return deal_within(lengths, self.ranks, self.micro_batch_tokens)
        return deal_fixed(lengths, masking.predictions(lengths), self.ranks, self.shapes)

    def _micro_batch(self, references: References, masking: MaskingSettings) -> PretrainBatch:
        self.order.epochs.go_on()
        batch = build_batch(self.order.epochs, references, masking)
        return batch if self.shapes is None else fill_fixed(batch, self.shapes, self.order.epochs.source.special.cls)

    def _started_epochs(self, references: References, first: int) -> tuple[tuple[int, Account], ...]:
        epochs = range(references.epochs[0], references.epochs[-1] + 1)
        started = (epoch for epoch in epochs if self.order.epoch_start(epoch) >= first)
        return tuple((epoch, self.order.epoch(epoch).account) for epoch in started)


def check_global_batch(global_batch: int, ranks: int, where: str = "global_batch") -> None:
    """Raises BertsmithError for more ranks than a step has sequences."""
    if global_batch < ranks:
        what = f"a global batch of {global_batch} sequences leaves some of {ranks} ranks without work"
        raise BertsmithError(what, where, "use a larger global batch or fewer ranks")


def totals(references: References, masking: MaskingSettings, pairs: PairSettings) -> StepTotals:
    """The counts, which follow from the lengths alone."""
    lengths = references.lengths
    masked = int(masking.predictions(lengths).sum())
    return StepTotals(len(lengths), int(lengths.sum()), masked, 0 if pairs.single else len(lengths))


def build_batch(epochs: Epochs, references: References, masking: MaskingSettings) -> PretrainBatch:
    """Packs and masks these instances, in this order."""
    order = np.lexsort((references.shards, references.epochs))
    shards = np.stack((references.epochs, references.shards), axis=1)[order]
    begins = np.flatnonzero(np.diff(shards, axis=0, prepend=-1).any(axis=1))
    parts = []
    for rows, (epoch, shard) in zip(np.split(order, begins)[1:], shards[begins].tolist(), strict=True):
        drawn, key = epochs.drawn(epoch, shard), epochs.stream(epoch).key("masks", shard)
        parts.append(Part(drawn.tokens, drawn.instances, references.instances[rows], rows, key))
    words = epochs.source.is_continuation if masking.whole_words else None
    return pack(parts, epochs.source.special, masking, words)


def held_out_batches(
    source: ShardSource,
    *,
    sequence_length: int,
    instances: int,
    masking: MaskingSettings,
    micro_batch_tokens: int,
    seed: int,
    pairs: PairSettings | None = None,
) -> list[PretrainBatch]:
    """The held-out instances of an evaluation, the same at every call: the first ones of a separate order.

    If the held-out documents give fewer than `instances`, all of them are used, once each, with a warning.
    Raises BertsmithError if no document was held out.
    """
    order = Order(
        Epochs(source, split="held_out", seed=seed, phase="held out", sequence_length=sequence_length, pairs=pairs)
    )
    there = order.epoch(0).size
    if there < instances:
        said = f"evaluation at length {sequence_length}: {there:,} held-out instances, not {instances:,}; all are used"
        warn(said, of_all_ranks=True)
    references = order.instances(0, min(instances, there))
    bins = deal_within(references.lengths, 1, micro_batch_tokens)
    return [build_batch(order.epochs, references[members], masking) for members in bins]
