"""A fine-tuning run that is ready to take steps: its model, optimizer and objective, and its stages."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from bertsmith.base.device import Device
from bertsmith.base.ranks.together import together
from bertsmith.model.encoder import Encoder
from bertsmith.tasks.contrastive import RankingObjective
from bertsmith.tasks.distilling.objective import DistilObjective
from bertsmith.tasks.finetuning.augmented import with_augmented
from bertsmith.tasks.finetuning.folds import keeper
from bertsmith.tasks.finetuning.model import build_model, optimizer_of
from bertsmith.tasks.finetuning.teacher import teaching_of
from bertsmith.tasks.finetuning.trials import trial_folder, trials
from bertsmith.tasks.finetuning.work import Work
from bertsmith.tasks.kinds.embed import Embed
from bertsmith.tasks.objective import TaskObjective
from bertsmith.tasks.task import Floats, Runner
from bertsmith.training.agreement import agree, checksum
from bertsmith.training.loop import Cadence, Stage, Trainer
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
    work: Work, run: Run, facts: RunFacts, resume: bool = False, outputs: Outputs | None = None, only: int = 0
) -> Iterator[tuple[Work, Trainer, Mapping[int, Callable[[], Stage]]]]:
    """The work with its augmented rows, the trainer of a run, at its newest checkpoint with `resume`, and the stages as
    `run_stages` takes them. only: the number of a stage that is trained by itself, in the folder of its trial; 0 for
    all.

    Random states of torch are as before when the block ends. Raises BertsmithError as `trainer_of` does, and where
    ranks start from different weights.
    """
    settings = work.settings
    folder = run.folder if not only else trial_folder(run.folder, trials(work)[only - 1])
    device, started_on = start_device(settings.device, settings.precision, True, facts.started_on, folder)
    work, made = with_augmented(work, run.folder, device, facts.started_on)
    checkpoint = newest_checkpoint(folder, resume)
    model = together(lambda: build_model(work, device, settings.seed))
    if checkpoint is None:
        agree(lambda: {"weights": checksum(model.state_dict())})
    optimizer = optimizer_of(model, settings, len(work.layers), device)
    position = resume_position(checkpoint, model, optimizer)
    drops = settings.dropout > 0 or settings.attention_dropout > 0
    most = micro_batch_tokens(settings.micro_batch_tokens, work.config, work.max_length, device)
    work = replace(work, settings=replace(settings, micro_batch_tokens=most))
    cut = {"micro_batch_tokens": most}
    started_on |= made | cut_of_run(facts.started_on, position, cut, drops)
    objective = _objective(work, model, device, keeper(run.folder))
    cadence = Cadence(settings.log_every, 0, settings.save_every, settings.keep, settings.keep_every)
    stages = {number: each for number, each in enumerate(trials(work), start=1) if only in (0, number)}
    steps = sum(each.steps for each in stages.values())
    with (
        torch.random.fork_rng([] if device.is_cpu else [device.torch_device]),
        trainer_of(
            folder,
            replace(facts, started_on=started_on),
            objective,
            optimizer,
            TrainerSettings(device, cadence, position, resume, steps, keeps_best=True, outputs=outputs or Outputs()),
        ) as trainer,
    ):
        yield work, trainer, {number: partial(each.stage, number, device) for number, each in stages.items()}


def _objective(work: Work, model: nn.Module, device: Device, keep: Callable[[str, Floats], None]) -> TaskObjective:
    """What the model learns: its rows' labels, and what a teacher shows."""
    runner = Runner(device.torch_device, work.settings.micro_batch_tokens, over_ranks=True)
    encoder = model.encoder
    assert isinstance(encoder, Encoder)
    parts = (work.task, encoder.config, model, work.metric, runner, keep)
    teaching = together(lambda: teaching_of(work, device))
    if teaching is not None:
        return DistilObjective(*parts, teaching=teaching)
    return (RankingObjective if isinstance(work.task, Embed) else TaskObjective)(*parts)
