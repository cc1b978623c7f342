"""The trials of a run side by side: dealt to the ranks, each trained by one of them alone in a folder of its own.

Their records and best weights then become the run's, as if all had come one after another in one process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from torch import nn

from bertsmith.base import files, ranks
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import as_details, say, warn
from bertsmith.base.ranks.together import together
from bertsmith.base.stopping import StoppedAfterSaving, stop_on_signals
from bertsmith.model.cpu.prepare import end_training
from bertsmith.tasks.finetuning.start import shared, started
from bertsmith.tasks.finetuning.trials import SEED, Trial, trial_folder, trials
from bertsmith.tasks.finetuning.work import Work
from bertsmith.training.checkpoints import Best, Position, drop_checkpoints
from bertsmith.training.loop import run_stages
from bertsmith.training.records.environment import environment
from bertsmith.training.records.meters import MetricsFile, read_metrics
from bertsmith.training.records.names import (
    ENVIRONMENT,
    EVENTS_FILE,
    METRICS_FILE,
    RECIPE_FILE,
    RUN_FILE,
    STOPPED_MARK,
    TRIALS_FOLDER,
)
from bertsmith.training.records.sinks import Outputs
from bertsmith.training.run import start_device
from bertsmith.training.run_folder import Guard, Run, RunFacts, check_same_run, claim, mark_stopped

_SIGNALLED = "what this rank trains is saved, and the run stops when the other ranks have saved too"
_CUT = "micro_batch_tokens"
# What a trial's folder holds beside checkpoints, of a killed run what it left half written too.
_OWN = (
    *(RUN_FILE, RECIPE_FILE, METRICS_FILE, EVENTS_FILE, STOPPED_MARK, "tensorboard"),
    *("damaged-step-*", "damaged-best-*", ".*.part", ".*.old"),
)


@dataclass(frozen=True)
class _Trained:
    """What a rank has done. positions: where its trials ended, by their numbers. stopped: None, or whether the signal
    that stopped it was Ctrl-C."""

    positions: Mapping[int, Position] = field(default_factory=dict)
    stopped: bool | None = None


def train_side_by_side(
    work: Work, run: Run, facts: RunFacts, outputs: Outputs, resume: bool
) -> tuple[Work, nn.Module | None, list[tuple[Path, Best]]]:
    """The work, the model as the last seed has left it on the first rank (on others whatever they had last, None
    without a trial), and the best weights of all seeds, each with the folder that has them.

    Raises BertsmithError as training does, and on all ranks StoppedAfterSaving, when each one is done or has stopped.
    """
    _check(outputs)
    run = Run(ranks.by_first(lambda: run.folder))  # where no folder was named, every rank has a temporary one
    if facts.guard is not None and not ranks.is_first():
        facts = replace(facts, guard=Guard(run.folder, facts.guard.start))
    work, facts, device_facts = _started_together(work, run, facts)
    every, count = dict(enumerate(trials(work), start=1)), ranks.world_size()
    mine = {number: trial for number, trial in every.items() if (len(every) - number) % count == ranks.rank()}
    shown = ", ".join(trial.name for trial in mine.values()) or "none"
    say(f"{len(every)} trainings side by side on {count} ranks, of which this log shows {shown}")
    say(f"each keeps its checkpoints until all are done, in {run.folder / TRIALS_FOLDER}")
    if count > len(every):
        warn(f"{count - len(every)} of {count} ranks have nothing to do in {len(every)} trainings", of_all_ranks=True)
    last: list[nn.Module] = []
    joined: list[MetricsFile] = []

    def train() -> _Trained:
        positions: dict[int, Position] = {}
        for number, trial in mine.items():
            if signal.requested:
                break
            last.clear()  # before there is another one in memory
            try:
                positions[number] = _train_alone(run, facts, resume, number, trial, last)
            except StoppedAfterSaving:
                break
        return _Trained(positions, signal.interrupted if signal.requested else None)

    with ExitStack() as ends, stop_on_signals(_SIGNALLED) as signal:

        def start() -> None:
            (run.folder / METRICS_FILE).unlink(missing_ok=True)  # of a run that was killed when it had joined them
            claim(run.folder, facts, None)
            sinks = outputs.sinks(run.folder, facts.recipe, [], 0)
            joined.append(ends.enter_context(MetricsFile(run.folder, 0, sinks, facts.hold)))

        ranks.by_first(start)
        together(lambda: _check_seen(run))
        facts.events.open(run.folder, device_facts, int, facts.is_ours)
        try:
            found = ranks.each_alone(train)
        finally:
            facts.events.open(run.folder, None, int, facts.is_ours)
        _leave_if_stopped(run, facts, [each.stopped for each in found], resume)
        positions = {number: position for each in found for number, position in each.positions.items()}
        ended = {trial_folder(run.folder, trial): positions[number] for number, trial in every.items()}
        ranks.by_first(facts.hold)
        ranks.by_first(lambda: _join_records(run, joined[0], ended))
    facts.events.open(run.folder, None, lambda: sum(each.step for each in ended.values()), facts.is_ours)
    _tell_others(run, work.metric, [trial for trial in every.values() if trial not in mine.values()])
    seeds = [trial_folder(run.folder, trial) for trial in every.values() if trial.kind == SEED]
    return work, last[0] if last else None, [(folder, best) for folder in seeds for best in ended[folder].bests]


def _check(outputs: Outputs) -> None:
    if outputs.profile:
        fix = "leave it out, or train without --side-by-side"
        raise BertsmithError("several trainings at a time are not profiled", "--profile", fix)


def _check_seen(run: Run) -> None:
    if not files.wait_for(run.folder / RUN_FILE):
        what = "trainings side by side need a folder that all hosts see, and this one does not see the first rank's"
        raise BertsmithError(what, run.folder, "name a run folder on a disk that the hosts share")


def _started_together(work: Work, run: Run, facts: RunFacts) -> tuple[Work, RunFacts, dict[str, object]]:
    """What all ranks choose and make together, and keep when the run is resumed: devices, augmented rows, how large a
    micro-batch is. The last is what the run's environment is recorded as."""
    settings, known = work.settings, facts.started_on.get(_CUT)
    device, started_on = start_device(settings.device, settings.precision, True, facts.started_on, run.folder)
    try:
        work, made = shared(work, run.folder, device, facts.started_on)
        recorded = environment(device.torch_device)
    finally:
        end_training()
    # Trials that have not started get the micro-batches of the others, whatever the number of threads is now.
    most = min(settings.micro_batch_tokens, int(known)) if known else work.settings.micro_batch_tokens
    if most < work.settings.micro_batch_tokens:
        warn(f"micro-batches stay at the {most:,} tokens that the run was started with", of_all_ranks=True)
    work = replace(work, settings=replace(work.settings, micro_batch_tokens=most))
    return work, replace(facts, started_on={**started_on, **made, _CUT: str(most)}), recorded


def _train_alone(run: Run, facts: RunFacts, resume: bool, number: int, trial: Trial, last: list[nn.Module]) -> Position:
    """Where a trial ended; puts the model after its last step into `last`."""
    folder = trial_folder(run.folder, trial)
    facts.events.open(folder, None, int, facts.is_ours)  # what is warned of from here on is of this trial
    known = check_same_run(folder, facts.identity)
    files.put_back(folder)  # before its newest checkpoint is looked for
    guard = None if facts.guard is None else facts.guard.inside(folder)
    facts = replace(facts, started_on={**facts.started_on, **known}, guard=guard)
    with started(trial.work, run, facts, resume, only={number: trial}) as (_, trainer, stages):
        run_stages(trainer, stages)
        trainer.write("end", {"tokens": trainer.position.tokens})
        trainer.saver.wait_for_bests()
        last.append(trainer.objective.model)
        return trainer.position


def _leave_if_stopped(run: Run, facts: RunFacts, stopped: Sequence[bool | None], resume: bool) -> None:
    if any(each is not None for each in stopped):
        why = f"stopped; run the same command {'again' if resume else 'with --resume'} to resume"
        ranks.by_first(lambda: mark_stopped(run.folder, facts, why))
        raise StoppedAfterSaving(why, any(stopped))


def _join_records(run: Run, metrics: MetricsFile, ended: Mapping[Path, Position]) -> None:
    """Writes the records of all trials as the run's, with steps counted on from one to the next. Raises BertsmithError
    where some are missing."""
    step, tokens = 0, 0
    events = [files.as_json(each, ensure_ascii=False) for each in read_metrics(run.folder / EVENTS_FILE)]
    for folder, position in ended.items():
        tokens += position.tokens
        files.wait_for(folder / METRICS_FILE)  # as another host may have written it
        records = read_metrics(folder / METRICS_FILE)
        if not records or records[-1]["kind"] != "end":
            what = "records of this training are missing, so the figures of the run cannot be told"
            raise BertsmithError(what, folder / METRICS_FILE, "remove the folder, and its training is done again")
        for record in records if folder == list(ended)[-1] else records[:-1]:
            total = {"tokens": tokens} if record["kind"] == "end" else {}
            metrics.write(record | {"step": step + record["step"]} | total)
        said = [each for each in read_metrics(folder / EVENTS_FILE) if each["kind"] != ENVIRONMENT]
        events += [files.as_json(each | {"step": step + each["step"]}, ensure_ascii=False) for each in said]
        step += position.step
    files.write_text(run.folder / EVENTS_FILE, "".join(f"{line}\n" for line in dict.fromkeys(events)))


def _tell_others(run: Run, metric: str, those: Sequence[Trial]) -> None:
    """Says on the first rank what its log has not shown."""
    records = run.metrics("evaluation") if ranks.is_first() else []
    for trial in those if records else ():
        found = [each[metric] for each in records if each.get(trial.kind) == trial.label]
        say(f"{trial.kind} {trial.label}: {trial.measured} {metric} {', '.join(f'{each:.4f}' for each in found)}")


def drop_trials(run: Path, those: Sequence[Trial], keep_every: int) -> None:
    """Removes what a finished run needs no more of its trials: all that is theirs but checkpoints that are kept for
    good. What a user has put beside stays."""
    folders = [each for each in (trial_folder(run, trial) for trial in those) if each.is_dir()]
    for folder in folders:
        with as_details():
            drop_checkpoints(folder, keep_every)
        for path in [path for own in _OWN for path in folder.glob(own)]:
            if path.is_file():
                path.unlink()
            else:
                files.remove_folder(path)
        if not any(folder.iterdir()):
            folder.rmdir()
    if folders and not any((run / TRIALS_FOLDER).iterdir()):
        (run / TRIALS_FOLDER).rmdir()
