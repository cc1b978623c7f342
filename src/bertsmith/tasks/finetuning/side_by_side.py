"""The trials of a run side by side: dealt to the ranks, each trained by one of them alone in a folder of its own.

Their records and best weights then become the run's, as if all had come one after another in one process.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml
from torch import nn

from bertsmith.base import files, ranks
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import as_details, say, warn
from bertsmith.base.stopping import StoppedAfterSaving, stop_on_signals
from bertsmith.model.cpu.prepare import end_training
from bertsmith.tasks.finetuning.augmented import with_augmented
from bertsmith.tasks.finetuning.start import started
from bertsmith.tasks.finetuning.trials import SEED, TRIALS_FOLDER, Trial, trial_folder, trials
from bertsmith.tasks.finetuning.work import Work
from bertsmith.training.checkpoints import Best, Position, drop_checkpoints
from bertsmith.training.loop import run_stages
from bertsmith.training.records.events import EVENTS_FILE
from bertsmith.training.records.meters import METRICS_FILE, MetricsFile, read_metrics
from bertsmith.training.records.sinks import Outputs
from bertsmith.training.run import start_device
from bertsmith.training.run_folder import Run, RunFacts, check_same_run, claim, mark_stopped

_WAITING = "this rank has done its part; the run stops when the others have saved"


@dataclass(frozen=True)
class _Trained:
    """What a rank has done. positions: where its trials ended, by their numbers. stopped: None, or whether the signal
    that stopped it was Ctrl-C."""

    positions: Mapping[int, Position] = field(default_factory=dict)
    stopped: bool | None = None


def train_side_by_side(
    work: Work, run: Run, facts: RunFacts, outputs: Outputs, resume: bool
) -> tuple[Work, nn.Module | None, list[tuple[Path, Best]]]:
    """The work and the model of this rank's last trial, which on the first rank is the last seed, as `started` gives
    them; and the best weights of all seeds, each with the folder that has them.

    Raises BertsmithError as training does, and on all ranks StoppedAfterSaving, when each one is done or has stopped.
    """
    if outputs.profile:
        fix = "leave it out, or train without --side-by-side"
        raise BertsmithError("several trainings at a time are not profiled", "--profile", fix)
    run = Run(ranks.by_first(lambda: run.folder))  # where no folder was named, every rank has a temporary one
    every, count = dict(enumerate(trials(work), start=1)), ranks.world_size()
    mine = {number: trial for number, trial in every.items() if (len(every) - number) % count == ranks.rank()}
    shown = ", ".join(trial.name for trial in mine.values())
    say(f"{len(every)} trainings side by side on {count} ranks, of which this log shows {shown}")
    if count > len(every):
        warn(f"{count - len(every)} of {count} ranks have nothing to do in {len(every)} trainings", of_all_ranks=True)
    facts = replace(facts, started_on=_started_together(work, run, facts))
    ranks.by_first(lambda: claim(run.folder, facts, None))
    last: list[tuple[Work, nn.Module]] = []

    def train() -> _Trained:
        positions: dict[int, Position] = {}
        with stop_on_signals(_WAITING) as signal:
            for number, trial in mine.items():
                if signal.requested:
                    break
                last.clear()  # before there is another one in memory
                try:
                    positions[number], of, model = _trained_alone(work, run, facts, resume, number, trial)
                except StoppedAfterSaving as stopped:
                    return _Trained(positions, stopped.interrupted)
                last.append((of, model))
                del of, model
        return _Trained(positions, signal.interrupted if signal.requested else None)

    found = ranks.each_alone(train)
    stopped = [each.stopped for each in found if each.stopped is not None]
    if stopped:
        why = f"stopped; run the same command {'again' if resume else 'with --resume'} to resume"
        ranks.by_first(lambda: mark_stopped(run.folder, why))
        raise StoppedAfterSaving(why, any(stopped))
    positions = {number: position for each in found for number, position in each.positions.items()}
    ended = {trial_folder(run.folder, trial): positions[number] for number, trial in every.items()}
    ranks.by_first(lambda: _join_records(run, facts, outputs, ended))
    _tell_others(run, work.metric, [trial for trial in every.values() if trial not in mine.values()])
    facts.events.open(run.folder, None, lambda: sum(each.step for each in ended.values()))
    seeds = [trial_folder(run.folder, trial) for trial in every.values() if trial.kind == SEED]
    work, model = last[0] if last else (work, None)
    return work, model, [(folder, best) for folder in seeds for best in ended[folder].bests]


def _started_together(work: Work, run: Run, facts: RunFacts) -> dict[str, str]:
    """What each trial is started on. All ranks choose their devices together, and make the augmented rows, which each
    trial then takes from the run folder."""
    settings = work.settings
    device, started_on = start_device(settings.device, settings.precision, True, facts.started_on, run.folder)
    try:
        _, made = with_augmented(work, run.folder, device, facts.started_on)
    finally:
        end_training()
    return started_on | made


def _trained_alone(
    work: Work, run: Run, facts: RunFacts, resume: bool, number: int, trial: Trial
) -> tuple[Position, Work, nn.Module]:
    """Where a trial ended, its work, and the model after its last step."""
    known = check_same_run(trial_folder(run.folder, trial), facts.identity)
    facts = replace(facts, started_on={**facts.started_on, **known})
    with started(work, run, facts, resume, only=number) as (work, trainer, stages):
        run_stages(trainer, stages)
        trainer.write("end", {"tokens": trainer.position.tokens})
        trainer.saver.wait()
        return trainer.position, work, trainer.objective.model


def _join_records(run: Run, facts: RunFacts, outputs: Outputs, ended: Mapping[Path, Position]) -> None:
    """Writes the records of all trials as the run's, with steps counted on from one to the next. What is there of an
    earlier try is written over."""
    folders, step, tokens, events = list(ended), 0, 0, dict[str, str]()
    claim(run.folder, replace(facts, started_on=check_same_run(folders[-1], facts.identity)), None)
    sinks = outputs.sinks(run.folder, yaml.safe_load(facts.recipe), [], 0)
    with MetricsFile(run.folder, 0, sinks) as metrics:
        for folder, position in ended.items():
            tokens += position.tokens
            for record in read_metrics(folder / METRICS_FILE):
                if record["kind"] != "end":
                    metrics.write(record | {"step": step + record["step"]})
                elif folder == folders[-1]:
                    metrics.write(record | {"step": step + record["step"], "tokens": tokens})
            for record in read_metrics(folder / EVENTS_FILE):
                said = json.dumps({name: value for name, value in record.items() if name not in ("step", "time")})
                events.setdefault(said, json.dumps(record | {"step": step + record["step"]}, ensure_ascii=False))
            step += position.step
    files.write_text(run.folder / EVENTS_FILE, "".join(f"{line}\n" for line in events.values()))


def _tell_others(run: Run, metric: str, those: Sequence[Trial]) -> None:
    """Says what the log of this rank has not shown."""
    records = run.metrics("evaluation") if ranks.is_first() else []
    for trial in those:
        found = [each[metric] for each in records if each.get(trial.kind) == trial.label]
        say(f"{trial.kind} {trial.label}: {trial.measured} {metric} {', '.join(f'{each:.4f}' for each in found)}")


def drop_trials(run: Path, keep_every: int) -> None:
    """Removes what a finished run needs no more of its trials: all but checkpoints that are kept for good."""
    with as_details():
        for folder in sorted((run / TRIALS_FOLDER).glob("*")):
            drop_checkpoints(folder, keep_every)
    if not keep_every:
        shutil.rmtree(run / TRIALS_FOLDER, ignore_errors=True)
