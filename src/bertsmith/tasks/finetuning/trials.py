"""The stages of a fine-tuning run: trainings on parts of the rows, which tell how far to trust the score, and then one
for each seed.

With `learning_curve`, a training on each of some shares of the training rows, of which the smaller are parts of the
larger. With `folds` K, one on each K - 1 of K parts, measured on the part that is left. None of these selects anything:
their scores are those after the last step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np

from bertsmith.base import ranks
from bertsmith.base.device import Device
from bertsmith.base.streams import stream_key
from bertsmith.optim.schedules import linear
from bertsmith.tasks.finetuning.model import build_model
from bertsmith.tasks.finetuning.work import Work
from bertsmith.tasks.objective import Order, RowSteps
from bertsmith.tasks.reading.divide import curve_rows, fold_rows
from bertsmith.tasks.results import MEDIAN
from bertsmith.tasks.settings import due_steps
from bertsmith.tasks.task import Examples
from bertsmith.training.loop import Stage, Trainer
from bertsmith.training.records.names import TRIALS_FOLDER

SHARE, FOLD, SEED = "share", "fold", "seed"


@dataclass(frozen=True)
class Trial:
    """A stage. kind, label: such as "seed", 42; "fold", 1; or "share", 10 (percent). rows: places of the training rows
    that it learns from, None for all. fold: places of those that it is measured on, None for dev and test."""

    work: Work
    kind: str
    label: int
    seed: int
    rows: Sequence[int] | None = None
    fold: Sequence[int] | None = None

    def train(self) -> Examples:
        """The rows to learn from."""
        every = self.work.parts["train"]
        return every if self.rows is None else self.work.examples([every.records[row] for row in self.rows])

    def held_out(self) -> dict[str, Examples]:
        """The rows to measure on."""
        if self.fold is None:
            return self.work.held_out
        records = self.work.parts["train"].records
        rows = self.work.examples([records[row] for row in self.fold])
        return {"dev": replace(rows, part=self.name)}

    @property
    def measured(self) -> str:
        """What the rows are called that it is measured on."""
        return "dev" if self.fold is None else "out-of-fold"

    @property
    def name(self) -> str:
        """Such as "fold-1"."""
        return f"{self.kind}-{self.label}"

    @cached_property
    def epoch_steps(self) -> int:
        """Steps of a pass over its rows, counted without encoding them again."""
        every = self.work.parts["train"]
        units = np.bincount(every.sequences.rows[every.units[:-1]], minlength=len(every.records))
        count = units.sum() if self.rows is None else units[list(self.rows)].sum()
        return math.ceil(int(count) / self.work.settings.batch)

    @property
    def steps(self) -> int:
        """Of the whole trial, if it does not end early."""
        return self.work.settings.steps(self.epoch_steps)

    @property
    def due(self) -> list[int]:
        """The steps after which it is measured."""
        return due_steps(self.steps, self._due_every)

    @property
    def _due_every(self) -> tuple[int, ...]:
        return (self.epoch_steps, self.work.settings.evaluate_every) if self.kind == SEED else ()

    def order(self) -> Order:
        """Of this rank's steps."""
        settings = self.work.settings
        size = (settings.batch, settings.micro_batch_tokens, ranks.rank(), ranks.world_size())
        return Order(self.train(), self.work.task, self.seed, *size, self.work.counted)

    def stage(self, number: int, device: Device) -> Stage:
        """The stage of this number, from 1, of a run; it starts afresh from the model folder's weights."""
        settings = self.work.settings

        def begin(trainer: Trainer) -> None:
            if number > 1:  # the first stage's weights are there already
                model = trainer.objective.model
                model.load_state_dict(build_model(self.work, device, self.seed).state_dict())
                trainer.optimizer.start_afresh()  # in place: another one would leave this one's moments in memory

        return Stage(
            number=number,
            kind=self.kind,
            label=self.label,
            steps=self.steps,
            learning_rate=partial(linear, steps=self.steps, warmup_share=settings.warmup, base=settings.learning_rate),
            loader=partial(RowSteps, self.order(), steps=self.steps),
            held_out=self.held_out(),
            begin=begin,
            seed=stream_key(self.seed, "finetune"),
            own_dropout=True,
            epoch_steps=self.epoch_steps,
            due_every=self._due_every,
            select=self.work.metric if self.kind == SEED else "",
            keep_all=settings.keep_seed == MEDIAN,
            patience=settings.patience if self.kind == SEED else 0,
            rows=self.measured,
        )


def trial_folder(run: Path, trial: Trial) -> Path:
    """Where a trial is trained that ranks do not train together, with all that a run folder has but a model."""
    return run / TRIALS_FOLDER / trial.name


def trials(work: Work) -> list[Trial]:
    """All of a run, in their order. Raises BertsmithError where there are too few rows to divide."""
    settings, records, kind = work.settings, work.parts["train"].records, type(work.task)
    curve = curve_rows(records, kind, settings.curve_shares, settings.seed)
    folds = fold_rows(records, kind, settings.folds, settings.seed)
    seeds = range(settings.seed, settings.seed + settings.seeds)
    return [
        *(Trial(work, SHARE, share, settings.seed, rows) for share, rows in curve),
        *(Trial(work, FOLD, number, settings.seed, rows, fold) for number, (rows, fold) in enumerate(folds, start=1)),
        *(Trial(work, SEED, seed, seed) for seed in seeds),
    ]
