"""The objective of pre-training: masked words, and next sentences, measured beside what frequencies alone reach."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.batches.packing import PretrainBatch
from bertsmith.model.losses import Forward
from bertsmith.model.pretraining import PretrainingModel, PretrainLosses
from bertsmith.training.objective import nothing
from bertsmith.training.pretraining.compiled import CompiledStep
from bertsmith.training.pretraining.evaluate import (
    FIGURES,
    Evaluation,
    baselines,
    bits_per_byte,
    held_out_figures,
    means,
    summed,
)
from bertsmith.training.pretraining.inputs import flop_of, to_inputs


@dataclass(frozen=True)
class Pretraining:
    """An `Objective`.

    alphabetic: bool[V], the pieces that are letters only. unigrams: int64[V], counts of the train split. piece_bytes:
    int64[V]. These are for `evaluate`; a step does without. compiled: runs `model`, where it is compiled.
    """

    model: PretrainingModel
    device: torch.device
    alphabetic: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    unigrams: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    piece_bytes: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    compiled: CompiledStep | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return PretrainLosses._fields

    @property
    def predicts(self) -> bool:
        """Whether the heads are trained, so that what they predict can be measured."""
        return True

    def forward(self, batch: PretrainBatch, device: torch.device) -> Forward:
        """The summed losses of a micro-batch."""
        inputs = to_inputs(batch, device)
        losses: PretrainLosses = self.model(inputs)  # called, so that a sharded model is gathered
        flop = flop_of(self.model.config, batch)
        return Forward(losses._asdict(), batch.tokens, inputs.packed.tokens, inputs.packed.attended_slots, flop)

    @torch.no_grad()
    def measure(self, held_out: Sequence[PretrainBatch], between: Callable[[], None] = nothing) -> Evaluation:
        """Means over held-out batches, without baselines; as of `evaluate`."""
        letters = torch.from_numpy(self.alphabetic).to(self.device)

        def figures(batch: PretrainBatch) -> Tensor:
            if self.compiled is not None:
                return self.compiled.held_out(batch, letters)
            inputs = to_inputs(batch, self.device)
            return held_out_figures(self.model.scores(inputs), inputs, letters)

        return means(summed(self.model, held_out, figures, FIGURES, self.device, between))

    def evaluate(self, held_out: Sequence[PretrainBatch], between: Callable[[], None] = nothing) -> dict[str, float]:
        """`Evaluation` and `baselines` as one record."""
        return self.record(self.measure(held_out, between), held_out)

    def record(self, found: Evaluation, held_out: Sequence[PretrainBatch]) -> dict[str, float]:
        """An evaluation on these batches, with what frequencies alone reach and the loss in bits per byte."""
        bits = bits_per_byte(found.masked_loss, held_out, self.piece_bytes)
        beside = baselines(held_out, self.unigrams, self.alphabetic)
        return {**found.as_record(), "masked_bits_per_byte": bits, **beside}

    def training_line(self, record: Mapping[str, float]) -> str:
        """The loss and the share of masked words that are predicted right."""
        right = record.get("masked_accuracy")  # none of a student whose heads are not trained
        return f"loss {record['loss']:.3f}{'' if right is None else f', masked words {right:.1%}'}"

    def evaluation_line(self, when: str, figures: Mapping[str, float]) -> str:
        """Masked words beside what frequencies alone reach, and next sentences, if they are learned."""
        pairs = f"; next sentence {figures['next_sentence_accuracy']:.1%}" if self.model.pairs else ""
        return (
            f"held out, {when}: masked words {figures['masked_accuracy']:.1%} right, loss "
            f"{figures['masked_loss']:.3f} (by frequency alone {figures['most_frequent_accuracy']:.1%} and "
            f"{figures['unigram_loss']:.3f}){pairs}"
        )
