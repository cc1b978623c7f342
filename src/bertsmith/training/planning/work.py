"""What a run has to do: how long its sequences are, how many there are, and how a step of them is cut up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith.batches.epochs import Epochs
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.shapes import FixedShapes
from bertsmith.model.config import BertConfig
from bertsmith.model.flop import step_flop

SAMPLE_TOKENS = 40_000_000
"""Of a corpus, that are cut into pairs for a plan: a second or two of one core."""
FORWARD = 1 / 3
"""Of a step's compute, that its forward pass takes."""


@dataclass(frozen=True)
class Batch:
    """What goes through the model at once. tokens: slots that are computed with. squares: the sum of the squared
    lengths. masked: words that the word head reads."""

    tokens: float
    squares: float
    masked: float
    sequences: float

    def times(self, factor: float) -> Batch:
        return Batch(self.tokens * factor, self.squares * factor, self.masked * factor, self.sequences * factor)

    def flop(self, config: BertConfig, pooled: bool = False) -> float:
        """Forward and backward. pooled: as of `step_flop`."""
        return step_flop(config, self.tokens, self.squares, self.masked, self.sequences, pooled=pooled)


@dataclass(frozen=True)
class Lengths:
    """values: int[n], lengths of sequences in slots, of all or of a sample. instances: of an epoch. sampled: how it was
    estimated; "" where it was counted."""

    values: NDArray[np.integer]
    instances: float
    sampled: str = ""

    def sequence(self, masking: MaskingSettings | None) -> Batch:
        """A sequence in the mean."""
        values = self.values.astype(np.float64)
        masked = 0.0 if masking is None else float(masking.predictions(self.values.astype(np.int64)).mean())
        return Batch(float(values.mean()), float((values**2).mean()), masked, 1)


def epoch_lengths(epochs: Epochs, most_tokens: int = SAMPLE_TOKENS) -> Lengths:
    """Of the first epoch: from its index where a run has kept it, else by cutting all shards, or as many, evenly
    spaced, as have `most_tokens`. Writes nothing."""
    index = epochs.files.read_index(epochs.stream(0)) if epochs.files is not None else None
    if index is not None:
        return Lengths(index.lengths, index.size)
    shards = [number for number, each in enumerate(epochs.shards) if each.documents]
    total = sum(each.tokens for each in epochs.shards)
    wanted = max(1, min(len(shards), len(shards) * most_tokens // max(total, 1)))
    chosen = [shards[place * len(shards) // wanted] for place in range(wanted)]
    drawn = [epochs.draw(0, shard).instances.lengths for shard in chosen]
    values = np.concatenate(drawn)
    tokens = sum(epochs.shards[shard].tokens for shard in chosen)
    if len(chosen) == len(shards):
        return Lengths(values, len(values))
    said = f"estimated from {len(chosen)} of {len(shards)} shards, {tokens / total:.1%} of the tokens"
    return Lengths(values, len(values) * total / tokens, said)


@dataclass(frozen=True)
class Work:
    """A stretch of a run. length: the most tokens of a sequence. batch: sequences of a step, in the mean. sequence:
    one in the mean. instances: of an epoch. evaluated: sequences that are measured, over the whole stretch. pooled: as
    of `step_flop`."""

    name: str
    length: int
    steps: int
    batch: float
    sequence: Batch
    instances: float
    evaluated: float
    pooled: bool = False

    @property
    def tokens(self) -> float:
        return self.steps * self.batch * self.sequence.tokens

    @property
    def epochs(self) -> float:
        return self.steps * self.batch / self.instances


@dataclass(frozen=True)
class Cut:
    """A rank's part of a step: how many micro-batches, and one of them, with what fills it up."""

    micro_batches: float
    batch: Batch


Cutter = Callable[[Work, int], Cut]
"""How a step of a stretch is cut up for so many ranks."""


def even_cut(most_tokens: int) -> Cutter:
    """Bins of even token counts, as they are."""

    def cut(work: Work, ranks: int) -> Cut:
        tokens = work.batch * work.sequence.tokens / ranks
        micro_batches = max(1, -(-int(tokens) // most_tokens))
        return Cut(micro_batches, work.sequence.times(work.batch / ranks / micro_batches))

    return cut


def fixed_cut(most_tokens: int, lengths: dict[str, Lengths], masking: MaskingSettings) -> Cutter:
    """One shape for all micro-batches of a stretch, as compiled steps have it. lengths: by the stretches' names."""

    def cut(work: Work, ranks: int) -> Cut:
        shapes = FixedShapes.for_steps(
            lengths[work.name].values,
            masking.densest(),
            global_batch=int(work.batch),
            ranks=ranks,
            budget_tokens=most_tokens,
            longest=work.length,
        )
        batch = work.sequence.times(shapes.tokens / work.sequence.tokens)
        return Cut(shapes.micro_batches, Batch(batch.tokens, batch.squares, shapes.masked, batch.sequences))

    return cut
