"""Evaluation on held-out documents, next to baselines from word frequencies.

Two baselines stand beside the masked-word figures: guessing by frequency (the loss of the train split's unigram
distribution) and always guessing the most frequent piece, among all pieces and among alphabetic ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertsmith.base.layout import IGNORED_LABEL, Ints
from bertsmith.base.ranks import rank, sum_over_ranks, world_size
from bertsmith.batches.packing import PretrainBatch
from bertsmith.model.losses import cross_entropy_sum
from bertsmith.model.pretraining import PretrainingModel, PretrainInputs, next_sentence_sum
from bertsmith.training.parallel import is_sharded, reshard

FIGURES = 8
"""How many numbers `held_out_figures` gives."""


@dataclass(frozen=True)
class Evaluation:
    """Means over the masked words and pairs of the held-out batches; losses in nats. masked_accuracy_alphabetic: None
    where no masked word is alphabetic. sequences: the pairs."""

    masked_loss: float
    masked_accuracy: float
    masked_accuracy_alphabetic: float | None
    next_sentence_loss: float
    next_sentence_accuracy: float
    masked_words: int
    sequences: int

    def as_record(self) -> dict[str, float]:
        """All fields, without those of pairs, and of alphabetic words, where there were none."""
        masked = ("masked_loss", "masked_accuracy", "masked_accuracy_alphabetic", "masked_words")
        every = {name: value for name, value in asdict(self).items() if value is not None}
        return {name: value for name, value in every.items() if self.sequences or name in masked}


def baselines(
    batches: Sequence[PretrainBatch], unigrams: NDArray[np.int64], alphabetic: NDArray[np.bool_]
) -> dict[str, float]:
    """What frequencies alone reach on the same masked words, by name.

    unigram_entropy: of the train split's pieces, in nats. unigram_loss: of that distribution (plus one count a piece)
    on the masked words. most_frequent_accuracy, most_frequent_alphabetic_accuracy: of always guessing the train
    split's most frequent piece, on all masked words; its most frequent alphabetic piece, on the alphabetic ones, left
    out where there are none.

    unigrams: int64[V], counts of the train split. alphabetic: bool[V].
    """
    labels = _labels(batches)
    seen = unigrams[unigrams > 0] / max(unigrams.sum(), 1)
    smoothed = (unigrams + 1) / (unigrams.sum() + len(unigrams))
    found = {
        "unigram_entropy": float(-(seen * np.log(seen)).sum()),
        "unigram_loss": float(-np.log(smoothed[labels]).mean()),
        "most_frequent_accuracy": float((labels == unigrams.argmax()).mean()),
    }
    words = labels[alphabetic[labels]]
    if len(words):
        most_frequent = np.where(alphabetic, unigrams, -1).argmax()
        found["most_frequent_alphabetic_accuracy"] = float((words == most_frequent).mean())
    return found


def bits_per_byte(masked_loss: float, batches: Sequence[PretrainBatch], piece_bytes: NDArray[np.int64]) -> float:
    """A masked-word loss in bits per byte of the masked text, white space not counted. piece_bytes: int64[V].

    It takes the length of pieces out of a comparison across vocabularies, and nothing else: shorter pieces are easier,
    for more of their word is shown, and [UNK] counts as its own bytes."""
    return float(masked_loss / math.log(2) / piece_bytes[_labels(batches)].mean())


def _labels(batches: Sequence[PretrainBatch]) -> Ints:
    every = np.concatenate([batch.masked_labels for batch in batches])
    labels: Ints = every[every != IGNORED_LABEL]
    return labels


def summed(
    model: PretrainingModel,
    batches: Sequence[PretrainBatch],
    figures: Callable[[PretrainBatch], Tensor],
    count: int,
    device: torch.device,
    between: Callable[[], None],
) -> list[float]:
    """The sums over all batches of the `count` numbers that `figures` finds by running the model, in evaluation mode,
    on one. Each rank takes its share of them. between: as of `Objective.evaluate`."""
    sums = torch.zeros(count, device=device, dtype=torch.float64)
    training = model.training
    model.eval()
    try:
        for first in range(0, len(batches), world_size()):
            between()
            place = first + rank()
            if place < len(batches):
                sums += figures(batches[place])
            elif is_sharded(model):
                # Others have one batch more, for which all gather; what this rank computes meanwhile does not count.
                figures(batches[0])
    finally:
        reshard(model)
        model.train(training)
    return sum_over_ranks(sums).tolist()


def held_out_figures(scores: tuple[Tensor, Tensor | None], inputs: PretrainInputs, letters: Tensor) -> Tensor:
    """What a micro-batch adds to an evaluation: float64[FIGURES], in the order of `means`.

    scores: of `PretrainingModel.scores`. letters: bool[V].
    """
    logits, pair_logits = scores
    masked = cross_entropy_sum(logits, inputs.masked_labels)
    pairs = next_sentence_sum(pair_logits, inputs)
    words = letters[inputs.masked_labels.clamp(min=0)] & (inputs.masked_labels != IGNORED_LABEL)
    best = logits.max(-1).indices  # of bf16 on a CPU a quarter of argmax's time, which was a sixth of an evaluation's
    right_words = ((best == inputs.masked_labels) & words).sum()
    figures = (
        *(masked.loss, masked.right, masked.count, right_words, words.sum()),
        *(pairs.loss, pairs.right, pairs.count),
    )
    return torch.stack([figure.double() for figure in figures])


def means(sums: list[float]) -> Evaluation:
    """Of the summed `held_out_figures` of all batches."""
    loss, right, count, right_words, words, pair_loss, pair_right, pairs = sums
    return Evaluation(
        masked_loss=loss / max(count, 1),
        masked_accuracy=right / max(count, 1),
        masked_accuracy_alphabetic=right_words / words if words else None,
        next_sentence_loss=pair_loss / max(pairs, 1),
        next_sentence_accuracy=pair_right / max(pairs, 1),
        masked_words=int(count),
        sequences=int(pairs),
    )
