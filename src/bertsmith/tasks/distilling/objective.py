"""The objective of a student: the labels of its rows, the teacher's scores, and the teacher's hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.model.config import BertConfig
from bertsmith.model.distillation.losses import hidden_sum
from bertsmith.model.distillation.maps import maps_of
from bertsmith.model.distillation.states import recorded
from bertsmith.model.encoder import encoder_of
from bertsmith.model.flop import step_flop
from bertsmith.model.losses import LossSum
from bertsmith.tasks.objective import TaskObjective, Units
from bertsmith.tasks.sequences import BatchTexts, Inputs
from bertsmith.tasks.settings import DistillSettings
from bertsmith.tasks.task import Task

LOGITS, HIDDEN = "logits", "hidden"


@dataclass(frozen=True)
class Teaching:
    """What a student learns from. model: the teacher, in evaluation mode; None where neither its scores nor its hidden
    states have a weight. config: its shape. pairs: of `layer_pairs`."""

    model: nn.Module | None
    config: BertConfig
    pairs: tuple[tuple[int, int], ...]
    settings: DistillSettings


@dataclass(frozen=True, kw_only=True)
class DistilObjective(TaskObjective):
    """An `Objective`. A loss is the mean of its own count times its weight; those without weight are left out, so that
    labels alone, with weight 1, are fine-tuning to the bit."""

    teaching: Teaching

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(weights(self.task, self.teaching.settings))

    def losses(self, inputs: Inputs, targets: Tensor, batch: Units) -> Mapping[str, LossSum]:
        teaching, settings, task = self.teaching, self.teaching.settings, self.task
        pairs = teaching.pairs if settings.hidden_weight else ()
        with recorded(encoder_of(self.model), [ours for ours, _ in pairs]) as states:
            scores = self.model(inputs)
        found: dict[str, LossSum] = {}
        if settings.label_weight:
            found[task.kind] = self._of_labels(scores, inputs, targets, batch)
        if teaching.model is not None:
            expected, theirs = taught(teaching.model, inputs, [layer for _, layer in pairs])
            if settings.logits_weight:
                found[LOGITS] = task.distilled(scores, expected, inputs, targets, settings.soft_temperature)
            if settings.hidden_weight:
                ours = [states.hidden[layer] for layer, _ in pairs]
                found[HIDDEN] = hidden_sum(ours, theirs, maps_of(self.model), inputs.asked.tokens)
        by_name = weights(task, settings)
        return {name: replace(each, loss=by_name[name] * each.loss) for name, each in found.items()}

    def _of_labels(self, scores: Tensor, inputs: Inputs, targets: Tensor, batch: Units) -> LossSum:
        """The loss of the units that have a label of their own."""
        which = labelled_units(batch, self.teaching.settings)
        if which.all():
            return self.task.loss_of(scores, inputs, targets)
        # Of kinds whose scores are by sequence: of others no rows are made (`tasks/finetuning/augmented.py`).
        labelled, texts = torch.from_numpy(which).to(scores.device), inputs.texts
        kept = labelled[texts.unit]
        of_kept = kept[texts.of]
        of, unit = (kept.cumsum(0) - 1)[texts.of[of_kept]], (labelled.cumsum(0) - 1)[texts.unit[kept]]
        part = replace(inputs, units=int(which.sum()), texts=BatchTexts(of, unit, texts.place[kept]))
        return self.task.loss_of(scores[of_kept], part, targets[labelled])

    def flop(self, tokens: int, squared_lengths: float, sequences: int) -> float:
        """With the teacher's forward pass, a third of what a step of it would take."""
        own = super().flop(tokens, squared_lengths, sequences)
        if self.teaching.model is None:
            return own
        counts = (tokens, squared_lengths)
        return own + step_flop(self.teaching.config, *counts, sequences=sequences, pooled=self.pooled) / 3

    @property
    def pooled(self) -> bool:
        return super().pooled and not self.teaching.settings.hidden_weight

    def training_line(self, record: Mapping[str, float]) -> str:
        if len(self.names) == 1:
            return super().training_line(record)
        parts = ", ".join(f"{name} {record[f'{name}_loss']:.4f}" for name in self.names if f"{name}_loss" in record)
        return f"{super().training_line(record)} ({parts})"


def weights(task: Task, settings: DistillSettings) -> dict[str, float]:
    """The losses that have a weight, in the order in which they are added up."""
    every = {task.kind: settings.label_weight, LOGITS: settings.logits_weight, HIDDEN: settings.hidden_weight}
    return {name: weight for name, weight in every.items() if weight}


def labelled_units(units: Units, settings: DistillSettings) -> NDArray[np.bool_]:
    """Which units count in the loss of labels: bool[U]."""
    originals = units.examples.originals
    if originals is None or settings.label_augmented:
        return np.full(len(units.numbers), True)
    return units.numbers < originals


def loss_counts(task: Task, units: Units, *, settings: DistillSettings) -> dict[str, int]:
    """What each loss of some units is divided by, the labels that have one or, of hidden states, the tokens."""
    examples, numbers = units.examples, units.numbers
    members, _ = examples.members(numbers)
    every = {
        task.kind: task.labels(examples.targets[numbers[labelled_units(units, settings)]]),
        LOGITS: task.labels(examples.targets[numbers]),
        HIDDEN: int(examples.sequences.lengths[members].sum()),
    }
    return {name: every[name] for name in weights(task, settings)}


@torch.no_grad()
def taught(model: nn.Module, inputs: Inputs, layers: list[int]) -> tuple[Tensor, list[Tensor]]:
    """A teacher's scores of a batch, and the hidden states of some of its layers."""
    with recorded(encoder_of(model), layers) as states:
        scores: Tensor = model(inputs)
    return scores, [states.hidden[layer] for layer in layers]
