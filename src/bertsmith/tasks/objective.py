"""The objective of fine-tuning, and its steps: what the training loop is given of a task and its rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import torch
from torch import Tensor, nn

from bertsmith.base import ranks
from bertsmith.base.layout import Ints, deal_within
from bertsmith.model.config import BertConfig
from bertsmith.model.flop import step_flop
from bertsmith.model.losses import Forward, LossSum
from bertsmith.tasks.kinds.pooled import Classifier
from bertsmith.tasks.sequences import Inputs, pack
from bertsmith.tasks.task import Examples, Floats, Runner, Task

_SHOWN = 8


@dataclass(frozen=True)
class Units:
    """Some units of the training rows: numbers, int64[U]. step: the numbers of all units of their step, over all ranks;
    places: int64[U], where these stand among them."""

    examples: Examples
    numbers: Ints
    step: Ints
    places: Ints


Counted = Callable[[Task, Units], dict[str, int]]


def label_counts(task: Task, units: Units) -> dict[str, int]:
    """The labels of some units, by the name of the task's loss."""
    return {task.kind: task.labels(units.examples.targets[units.numbers])}


@dataclass(frozen=True)
class TaskObjective:
    """An `Objective`. metric: the one in log lines. keep: is given the name and the scores of rows that are measured,
    on the first rank."""

    task: Task
    config: BertConfig
    model: nn.Module
    metric: str
    runner: Runner
    keep: Callable[[str, Floats], None] = lambda part, scores: None

    @property
    def names(self) -> tuple[str, ...]:
        return (self.task.kind,)

    def forward(self, batch: Units, device: torch.device) -> Forward:
        """The summed loss of some training units."""
        inputs, targets = self.inputs(batch, device)
        losses = self.losses(inputs, targets, batch)
        lengths = inputs.asked.lengths
        tokens, squared = int(lengths.sum()), float((lengths.astype(np.float64) ** 2).sum())
        flop = self.flop(tokens, squared, len(lengths))
        return Forward(losses, tokens, inputs.packed.tokens, inputs.packed.attended_slots, flop)

    def losses(self, inputs: Inputs, targets: Tensor, batch: Units) -> Mapping[str, LossSum]:
        """The summed losses by name. inputs, targets: of `batch`, as `inputs` gave them."""
        return {self.task.kind: self.task.loss(self.model, inputs, targets)}

    def flop(self, tokens: int, squared_lengths: float, sequences: int) -> float:
        """Floating-point operations of a batch: `step_flop`."""
        return step_flop(self.config, tokens, squared_lengths, sequences=sequences, pooled=self.pooled)

    @property
    def pooled(self) -> bool:
        """Whether of the last layer only [CLS] is computed behind attention (`Encoder.pooled`)."""
        return isinstance(self.model, Classifier)

    def inputs(self, batch: Units, device: torch.device) -> tuple[Inputs, Tensor]:
        """The sequences of some training units, and their targets."""
        train = batch.examples
        members, unit = train.members(batch.numbers)
        inputs = pack(train.sequences, members, device, unit)
        return inputs, torch.from_numpy(train.targets[batch.numbers]).to(device, non_blocking=True)

    def evaluate(
        self, held_out: Mapping[str, Examples], between: Callable[[], None] = lambda: None
    ) -> dict[str, float]:
        """Every metric on the rows "dev" and, on those of another part, its name before the metric's ("test_f1").

        All ranks get the figures of the first one, so that all decide alike which weights are the best.
        """
        training = self.model.training
        self.model.eval()
        figures: dict[str, float] = {}
        try:
            for part, examples in held_out.items():
                runner = replace(self.runner, between=between, doing=f"measuring {examples.part}")
                scores = runner.scores(self.model, examples.sequences, self.task.per_token)
                if ranks.is_first():
                    self.keep(examples.part, scores)
                found = self.task.evaluate(scores, examples)
                # By the thresholds of the start a rare class may be given to no row: all epochs would seem equal.
                if part == "dev" and self.task.tunes_each_time:
                    found = self.task.cross_fitted(scores, examples)
                figures |= {("" if part == "dev" else f"{part}_") + name: value for name, value in found.items()}
        finally:
            self.model.train(training)
        return ranks.by_first(lambda: figures)

    def training_line(self, record: Mapping[str, float]) -> str:
        return f"loss {record['loss']:.4f}"

    def evaluation_line(self, when: str, figures: Mapping[str, float]) -> str:
        return f"{when} {self.metric} {figures[self.metric]:.4f}"


@dataclass(frozen=True)
class RowStep:
    """One optimizer step of one rank.

    number: from 0. micro_batches: as many on every rank, some of them empty where a step has few units.
    counts, tokens, sequences (units): of the whole step. where: its rows, for messages.
    """

    number: int
    micro_batches: tuple[Units, ...]
    counts: Mapping[str, int]
    tokens: int
    sequences: int
    where: str


@dataclass(frozen=True)
class Order:
    """In which order units are taken: drawn anew for each epoch.

    seed: of the run. batch: units of a step, over all ranks. budget_tokens: the most that go through the model at once.
    rank: the one, of `ranks`, whose share of a step is built. counted: the labels of each loss of some units.
    """

    examples: Examples
    task: Task
    seed: int
    batch: int
    budget_tokens: int
    rank: int = 0
    ranks: int = 1
    counted: Counted = label_counts

    @property
    def epoch_steps(self) -> int:
        """Steps of an epoch; the last one may have fewer units."""
        return math.ceil(len(self.examples.targets) / self.batch)

    @cached_property
    def lengths(self) -> Ints:
        """int64[U], of each unit in tokens."""
        return self.examples.unit_lengths()

    def units(self, epoch: int) -> Ints:
        """The units of an epoch, counted from 1, in its order: int64[U]."""
        return self.task.order(self.examples, self.seed, epoch)

    def step(self, number: int, units: Ints) -> RowStep:
        """Step `number` from 0, out of the `units` of its epoch."""
        place = number % self.epoch_steps * self.batch
        members = units[place : place + self.batch]
        lengths = self.lengths[members]
        bins = deal_within(lengths, self.ranks, self.budget_tokens)
        each = len(bins) // self.ranks
        ours = bins[self.rank * each : (self.rank + 1) * each]
        whole = Units(self.examples, members, members, np.arange(len(members)))
        micro = tuple(Units(self.examples, members[places], members, places) for places in ours)
        shown = ", ".join(map(self.examples.where, members[:_SHOWN]))
        more = f" and {len(members) - _SHOWN} more rows" if len(members) > _SHOWN else ""
        counts, tokens = self.counted(self.task, whole), int(lengths.sum())
        return RowStep(number, micro, counts, tokens, len(members), f"rows {shown}{more}")


class RowSteps:
    """The steps of one seed after the first `done`, in order, up to `steps`. Rows lie in memory, so nothing is waited
    for."""

    waited_seconds = 0.0

    def __init__(self, order: Order, done: int, steps: int) -> None:
        self._order, self._done, self._steps = order, done, steps

    def __iter__(self) -> Iterator[RowStep]:
        order = self._order
        last = -(-self._steps // order.epoch_steps)  # no order is drawn that nothing is taken of
        for epoch in range(1 + self._done // order.epoch_steps, 1 + last):
            units = order.units(epoch)
            first = (epoch - 1) * order.epoch_steps
            for number in range(max(first, self._done), min(first + order.epoch_steps, self._steps)):
                yield order.step(number, units)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass
