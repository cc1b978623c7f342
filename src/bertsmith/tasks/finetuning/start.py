"""A fine-tuning run that is ready to take steps: its model, optimizer and objective, and its stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from torch import nn

from bertsmith.base import ranks
from bertsmith.base.device import Device
from bertsmith.base.ranks.together import together
from bertsmith.model.encoder import encoder_of
from bertsmith.tasks.contrastive import RankingObjective
from bertsmith.tasks.distilling.objective import DistilObjective
from bertsmith.tasks.finetuning.augmented import with_augmented
from bertsmith.tasks.finetuning.folds import FoldScores
from bertsmith.tasks.finetuning.model import build_model, optimizer_of
from bertsmith.tasks.finetuning.teacher import teaching_of
from bertsmith.tasks.finetuning.trials import SEED, Trial, trial_folder, trials
from bertsmith.tasks.finetuning.work import Work
from bertsmith.tasks.kinds.embed import Embed
from bertsmith.tasks.objective import TaskObjective
from bertsmith.tasks.results import last_figures, results_of
from bertsmith.tasks.task import Floats, Runner
from bertsmith.training.agreement import agree, checksum
from bertsmith.training.checkpoints import Position
from bertsmith.training.loop import Cadence, Stage, Trainer
from bertsmith.training.records.meters import read_metrics
from bertsmith.training.records.names import METRICS_FILE
from bertsmith.training.records.sinks import Outputs
from bertsmith.training.run import (
    TrainerSettings,
    cut_of_run,
    micro_batch_tokens,
    newest_checkpoint,
    resume_position,
    start_device,
    trainer_of,
)
from bertsmith.training.run_folder import Run, RunFacts


@contextmanager
def started(
    work: Work,
    run: Run,
    facts: RunFacts,
    resume: bool = False,
    outputs: Outputs | None = None,
    only: Mapping[int, Trial] | None = None,
) -> Iterator[tuple[Work, Trainer, Mapping[int, Callable[[], Stage]]]]:
    """The work with its augmented rows, the trainer of a run, at its newest checkpoint with `resume`, and the stages as
    `run_stages` takes them. only: a trial that is trained by itself, by its number, in a folder of its own; what all
    trials share is made already then.

    Random states of torch are as before when the block ends. Raises BertsmithError as `trainer_of` does, and where
    ranks start from different weights; and at the end of the block where the disk refuses scores that a report needs.
    """
    settings = work.settings
    folder = run.folder if only is None else trial_folder(run.folder, next(iter(only.values())))
    device, started_on = start_device(settings.device, settings.precision, True, facts.started_on, folder)
    if only is None:
        work, made = shared(work, run.folder, device, facts.started_on)
        started_on |= made
    checkpoint = newest_checkpoint(folder, resume)
    model = together(lambda: build_model(work, device, settings.seed))
    if checkpoint is None:
        agree(lambda: {"weights": checksum(model.state_dict())})
    optimizer = optimizer_of(model, settings, len(work.layers), device)
    position = resume_position(checkpoint, model, optimizer)
    drops = settings.dropout > 0 or settings.attention_dropout > 0
    cut = {"micro_batch_tokens": work.settings.micro_batch_tokens}
    started_on |= cut_of_run(facts.started_on, position, cut, drops)
    of_folds = FoldScores(run.folder, facts.hold)
    objective = _objective(work, model, device, of_folds.keep)
    cadence = Cadence(settings.log_every, 0, settings.save_every, settings.keep, settings.keep_every)
    stages = dict(enumerate(trials(work), start=1)) if only is None else only
    if position is not None:
        ranks.by_first(lambda: _check_measured(folder, position, stages))
    steps = sum(each.steps for each in stages.values())
    with trainer_of(
        folder,
        replace(facts, started_on=started_on),
        objective,
        optimizer,
        TrainerSettings(
            device, cadence, position, resume, steps, True, outputs=outputs or Outputs(), before_saves=of_folds.sync
        ),
    ) as trainer:
        yield work, trainer, {number: partial(each.stage, number, device) for number, each in stages.items()}
        if settings.report:  # a checkpoint that waited for the scores of folds may not have been written
            ranks.by_first(of_folds.sync)


def _check_measured(folder: Path, position: Position, stages: Mapping[int, Trial]) -> None:
    """Raises BertsmithError where `metrics.jsonl` lacks a record from before the checkpoint without which the run could
    not tell its results in the end."""
    path = folder / METRICS_FILE
    records = read_metrics(path)
    for number, trial in stages.items():
        due, patience = trial.due, trial.work.settings.patience
        if number >= position.stage:  # what comes after the checkpoint is measured again
            last = position.stage_step - position.unmeasured if number == position.stage else 0
            due, patience = [step for step in due if step <= last], 0
        if not due:
            continue
        if trial.kind == SEED:
            until = [each for each in records if each.get("seed_step", 0) <= due[-1]]
            results_of(path, until, [trial.label], trial.work.metric, trial.epoch_steps, due, patience)
        else:
            last_figures(path, records, trial.kind, [trial.label], trial.work.metric)


def shared(work: Work, run: Path, device: Device, started_on: Mapping[str, str]) -> tuple[Work, dict[str, str]]:
    """The work with what all of its trials share, which all ranks make together: augmented rows, and how large a
    micro-batch is; and what `RunFacts.started_on` records of the rows."""
    settings = work.settings
    work, made = with_augmented(work, run, device, started_on)
    most = micro_batch_tokens(settings.micro_batch_tokens, work.config, work.max_length, device)
    return replace(work, settings=replace(settings, micro_batch_tokens=most)), made


def _objective(work: Work, model: nn.Module, device: Device, keep: Callable[[str, Floats], None]) -> TaskObjective:
    """What the model learns: its rows' labels, and what a teacher shows."""
    runner = Runner(device.torch_device, work.settings.micro_batch_tokens, over_ranks=True)
    parts = (work.task, encoder_of(model).config, model, work.metric, runner, keep)
    teaching = together(lambda: teaching_of(work, device))
    if teaching is not None:
        return DistilObjective(*parts, teaching=teaching)
    return (RankingObjective if isinstance(work.task, Embed) else TaskObjective)(*parts)
