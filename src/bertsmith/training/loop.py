"""The training loop of one stage: step, log, evaluate, save, stop. It serves whatever has an `Objective`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

import torch

from bertsmith.base.device import seed_generators
from bertsmith.base.log import Progress, counted, say, warn
from bertsmith.base.ranks import by_first, is_first, rank
from bertsmith.base.ranks.shared_stop import SharedStop
from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.base.streams import stream_key
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.training.checkpoints import Best, Position
from bertsmith.training.checkpoints.saver import Saver
from bertsmith.training.objective import Objective, Step, Steps, Watch, nothing
from bertsmith.training.pace import Pace
from bertsmith.training.records.late_reading import LateReading
from bertsmith.training.records.meters import Meter, MetricsFile
from bertsmith.training.records.trace import Trace
from bertsmith.training.step import Compiled, refuse_faulty, train_step, verdict

# Compiled micro-batches have room for steps with more tokens than most; an empty twentieth is worth a warning.
_LEAST_FILL = 0.95


class _EvaluationEnded(Exception):
    """A stop came between two batches of an evaluation."""


@dataclass(frozen=True)
class Cadence:
    """Steps between log lines, held-out evaluations and checkpoints (0: only where all are due); how many of the
    newest checkpoints are kept, and the steps between those that are kept for good (0: none are)."""

    log_every: int
    evaluate_every: int
    save_every: int
    keep: int
    keep_every: int = 0


@dataclass(frozen=True)
class Stage:
    """A stretch of a run: a phase of pre-training, or fine-tuning from one seed.

    number: from 1, rising through the run. kind, label: what it is called in messages and records, such as "phase", 2.
    learning_rate: of update 1..steps. loader: of the updates after a given one. held_out: what `Objective.evaluate`
    takes; falsy where there is nothing. begin: makes model and optimizer ready before the first step: from the last
    stage's weights, or afresh. seed: of dropout. own_dropout: dropout is counted from the stage's first step, not from
    the run's. epoch_steps: steps of a pass over the rows. due_every: steps after which everything is due: lines,
    evaluations and checkpoints (0: only at the end). select: the figure of `Objective.evaluate` by which the best
    weights are kept ("": none are). least: the best is the lowest; and of the last step none are kept as such, because
    they are the finished model's. keep_all: the best weights of earlier stages are kept too, not the best of all
    alone. patience: evaluations in a row without a better figure after which the stage ends (0: never). pace: of a
    stage that ends by time, for which `steps` and `loader` have more steps than it will take. rows: what the rows of
    `held_out` are called in the line that tells their figures.
    """

    number: int
    kind: str
    label: int
    steps: int
    learning_rate: Callable[[int], float]
    loader: Callable[[int], Steps]
    held_out: Any
    begin: Callable[[Trainer], None]
    seed: int
    own_dropout: bool = False
    epoch_steps: int = 0
    due_every: tuple[int, ...] = ()
    select: str = ""
    least: bool = False
    keep_all: bool = False
    patience: int = 0
    pace: Pace | None = None
    rows: str = "dev"

    @property
    def last_step(self) -> int:
        """The step after which it ends, by the present plan."""
        return self.steps if self.pace is None else self.pace.steps

    @property
    def name(self) -> str:
        """Such as "phase 2"."""
        return f"{self.kind} {self.label}"


@dataclass
class Trainer:
    """What training changes and where it writes.

    resume_hint: how to resume, for the message after a stop. compiled: the model, where it runs compiled. peak: FLOP/s
    that the device reaches at best, where that is known. mark_stopped: called on all ranks, with the message, as soon
    as what a stop made it save is on the disk. trace: of the steps that a user wants profiled, watch: what looks for
    faults; both on the first rank.
    """

    objective: Objective
    optimizer: ClippedOptimizer
    device: torch.device
    precision: str
    saver: Saver
    metrics: MetricsFile | None
    cadence: Cadence
    position: Position
    stop: SharedStop
    resume_hint: str
    compiled: Compiled | None = None
    peak: float | None = None
    mark_stopped: Callable[[str], None] = lambda _: None
    trace: Trace | None = None
    watch: Watch | None = None
    skipped_told: float = 0.0
    _stage: Stage | None = field(default=None, init=False)
    _fill_warned: set[int] = field(default_factory=set, init=False)
    _began: float | None = field(default=None, init=False)
    _save_and_leave: Callable[[], object] = field(default=nothing, init=False)

    def enter(self, stage: Stage) -> None:
        """Makes a stage the present one, and begins it if it is new."""
        self._stage = stage
        if stage.number > self.position.stage:
            stage.begin(self)
            kept = self.position.bests
            if kept and not stage.keep_all:
                kept = [max(kept, key=lambda best: best.score)]
            fresh = {"stage_step": 0, "best": None, "kept": kept, "stale": 0, "pace": []}
            self.position = replace(self.position, stage=stage.number, **fresh)  # type: ignore[arg-type]

    def _now(self) -> float:
        """How many seconds old the run is, by the clock of the first rank; without those that a kill has lost."""
        began = self._began = time.monotonic() - self.position.seconds if self._began is None else self._began
        return by_first(lambda: time.monotonic() - began)

    def run(self, stage: Stage) -> None:
        """Takes the remaining steps of the stage, which must have been entered.

        Raises StoppedAfterSaving after a signal, and BertsmithError when a loss or gradient is not finite, or when what
        a signal made it save cannot be written.
        """
        if stage.pace is not None:
            stage.pace.begin(self._now(), self.position.pace)
        meter, previous = Meter(self.device, self.objective.names, self.peak), None
        if self.position.since_log and is_first():
            meter.restore(self.position.since_log)
        self.position = replace(self.position, since_log=[])
        self.objective.model.train()
        with (
            stage.loader(self.position.stage_step) as loader,
            Progress(stage.name, None if stage.pace else stage.steps, "steps") as progress,
        ):
            progress.skip(self.position.stage_step)

            def evaluate_and_save() -> None:
                self._evaluate_and_save(stage, previous, meter, loader.waited_seconds)

            self._save_and_leave = evaluate_and_save
            if self.position.unmeasured:
                evaluate_and_save()
            for step in () if self._ends(stage) else loader:
                rate = stage.learning_rate(step.number + 1)
                reading = self._step(stage, step, meter, rate)
                # Reading the flag of the step before this one never waits for the device.
                self._refuse_non_finite(stage, previous)
                if reading is not None:
                    previous = (step, reading)
                    self._advance(step)
                    note = ""
                    if self._due(self.cadence.log_every, stage) or self._early(stage):
                        self._refuse_non_finite(stage, previous)
                        note = self._log(stage, meter, rate, loader.waited_seconds)
                    progress.advance(1, note)
                evaluate_and_save()
                if self._ends(stage):
                    break
        self._save_and_leave = nothing

    def _step(self, stage: Stage, step: Step, meter: Meter, rate: float) -> LateReading | None:
        """One update; gives what will say whether it was sound, None where a stop came first and it was dropped."""
        self.optimizer.set_learning_rate(rate)
        # A key for each step and rank: ranks drop different units, and a resumed run drops the same ones as before.
        counted = self.position.stage_step if stage.own_dropout else self.position.step
        seed_generators(self.device, stream_key(stage.seed, "dropout", rank(), counted) >> 1)
        sums = train_step(
            self.objective,
            self.optimizer,
            step.micro_batches,
            # A loss that has no labels, as of hidden states, is a mean over the tokens.
            {name: step.counts.get(name, step.tokens) for name in self.objective.names},
            self.device,
            self.compiled,
            should_stop=self.stop.look,
        )
        if sums is None:
            return None
        meter.add(sums, self.optimizer.gradient_norm, step.sequences)
        return LateReading(verdict(self.optimizer, sums))

    def _advance(self, step: Step) -> None:
        done = self.position
        self.position = replace(done, step=done.step + 1, stage_step=step.number + 1, tokens=done.tokens + step.tokens)
        if self.trace is not None:
            self.trace.advance(self.position.step)
        if self.watch is not None:
            self.watch.count(step)

    def _due(self, every: int, stage: Stage) -> bool:
        done = self.position.stage_step
        return done == stage.last_step or any(period > 0 and done % period == 0 for period in (every, *stage.due_every))

    def _early(self, stage: Stage) -> bool:
        return stage.pace is not None and stage.pace.looks_after(self.position.stage_step)

    def _evaluate_and_save(
        self, stage: Stage, last: tuple[Step, LateReading] | None, meter: Meter, waited: float
    ) -> None:
        dropped = self.stop.requested
        due = self.position.unmeasured or self._due(self.cadence.evaluate_every, stage)
        if stage.held_out and not dropped and due:
            self._refuse_non_finite(stage, last)
            with meter.paused():
                self._evaluate(stage)
        stopping = dropped or self.stop.look()
        if not (dropped and self.saver.has_taken(self.position)) and (self._save_due(stage) or stopping):
            self._refuse_non_finite(stage, last)
            position = replace(self.position, since_log=meter.state(waited))
            if stage.pace is not None:
                position = replace(position, seconds=self._now(), pace=stage.pace.state())
            with meter.paused():
                self.saver.save(position, self.objective.model, self.optimizer)
        if stopping:
            self._leave()

    def _leave(self) -> NoReturn:
        """Leaves, once what was saved is on the disk."""
        self.saver.wait()
        self.stop.finish()
        why = f"stopped at step {self.position.step}; {self.resume_hint}"
        self.mark_stopped(why)
        raise StoppedAfterSaving(why, self.stop.interrupted)

    def leave_if_stopped(self) -> None:
        """Before the first step of a run, or after the last: between batches of what is then measured, which a resumed
        run measures again. Raises StoppedAfterSaving."""
        if self.stop.look():
            self._leave()

    def wait_for(self, ready: Callable[[float], bool]) -> None:
        """As `SharedStop.wait`, for what a stage needs before its next step. Raises StoppedAfterSaving at a stop, when
        the steps before it are saved."""
        if self.stop.wait(ready):
            self._save_and_leave()
            self._leave()

    def _evaluate(self, stage: Stage) -> None:
        """Measures; a stop ends that, and it is done again when the run is resumed."""
        self.position = replace(self.position, unmeasured=True)
        try:
            figures = self.measure("evaluation", self._when(stage), stage.held_out, self._end_if_stopped)
        except _EvaluationEnded:
            return
        self.position = replace(self.position, unmeasured=False)
        if stage.select:
            self._keep_best(stage, figures[stage.select])

    def _end_if_stopped(self) -> None:
        if self.stop.look():
            raise _EvaluationEnded

    def _when(self, stage: Stage) -> str:
        if stage.epoch_steps:
            return f"{stage.name}, epoch {self.position.stage_step / stage.epoch_steps:.4g}: {stage.rows}"
        return f"after step {self.position.step:,}"

    def _keep_best(self, stage: Stage, figure: float) -> None:
        """Notes whether the weights are the best of the stage; the save of this step then writes them."""
        done, score = self.position, -figure if stage.least else figure
        if not math.isfinite(score) or (done.best is not None and score <= done.best.score):
            self.position = replace(done, stale=done.stale + 1)
        else:
            is_model = stage.least and done.stage_step == stage.last_step
            self.position = replace(done, best=None if is_model else Best(score, done.step), stale=0)

    def _ends(self, stage: Stage) -> bool:
        """Whether the stage ends before its last step; says so."""
        out_of_patience = 0 < stage.patience <= self.position.stale
        if out_of_patience:
            say(f"{stage.name}: no better {stage.select} in {counted(stage.patience, 'evaluation')}, so it ends here")
        return out_of_patience or (stage.pace is not None and self.position.stage_step >= stage.last_step)

    def _save_due(self, stage: Stage) -> bool:
        done, keep_every = self.position, self.cadence.keep_every
        is_best = done.best is not None and done.best.step == done.step
        return is_best or (keep_every > 0 and done.step % keep_every == 0) or self._due(self.cadence.save_every, stage)

    def _log(self, stage: Stage, meter: Meter, rate: float, waited: float) -> str:
        record = meter.read(waited)
        if stage.pace is None:
            left = (stage.last_step - self.position.stage_step) * record["seconds_per_step"]
        else:
            now = self._now()
            stage.pace.look(self.position.stage_step, now)
            left = max(stage.pace.until - now, 0.0)
        self._warn_of_fill(stage, record["fill"])
        scaling = self._scaling()
        epoch = {"epoch": math.ceil(self.position.stage_step / stage.epoch_steps)} if stage.epoch_steps else {}
        self.write(
            "train", {"learning_rate": rate, **epoch, **record, **scaling, f"seconds_left_in_{stage.kind}": left}
        )
        line = self.objective.training_line(record) if "loss" in record else "no loss: nothing counted"
        return f"{line}, {record['tokens_per_second']:,.0f} tokens/s"

    def _scaling(self) -> dict[str, float]:
        """The numbers of the loss scale, where there is one; warns of updates skipped since the last line."""
        if self.optimizer.loss_scale is None:
            return {}
        scaling = {name: float(value) for name, value in self.optimizer.loss_scale.state_dict().items()}
        scale, skipped = scaling["scale"], scaling["skipped_updates"]
        self.skipped_told = min(self.skipped_told, skipped)  # a stage that starts afresh counts from 0
        if skipped > self.skipped_told:
            warn(
                f"{counted(int(skipped - self.skipped_told), 'update')} skipped up to step {self.position.step:,}, "
                f"because gradients overflowed fp16; the loss scale is now {scale:g} ({skipped:,.0f} skipped in all)",
                of_all_ranks=True,
            )
        self.skipped_told = skipped
        return {"loss_scale": scale, "skipped_updates": skipped}

    def _warn_of_fill(self, stage: Stage, fill: float) -> None:
        """Warns, once a stage, where compiled micro-batches hold much filling."""
        if self.compiled is not None and fill < _LEAST_FILL and stage.number not in self._fill_warned:
            self._fill_warned.add(stage.number)
            warn(
                f"{stage.name}: only {fill:.1%} of the slots of its compiled micro-batches hold tokens; steps of more "
                "sequences, or another micro_batch_tokens, fill them better",
                of_all_ranks=True,
            )

    def measure(
        self, kind: str, when: str, held_out: Any, between: Callable[[], None], **values: int
    ) -> dict[str, float]:
        """Evaluates, writes the figures as a record of this kind with `values`, and says them. between: as of
        `Objective.evaluate`."""
        figures = self.objective.evaluate(held_out, between)
        self.write(kind, {**values, **figures})
        say(self.objective.evaluation_line(when, figures))
        return figures

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Puts a record of this kind, step and stage into the metrics, on the first rank, and warns of what it shows to
        be wrong."""
        if self.metrics is not None:
            stage = self._stage
            named = {} if stage is None else {stage.kind: stage.label, f"{stage.kind}_step": self.position.stage_step}
            record = {"kind": kind, "step": self.position.step, **named, **values}
            self.metrics.write(record)
            for name, message in (self.watch.see(record) if self.watch is not None else {}).items():
                self.warn_of(name, message)

    def warn_of(self, name: str, message: str) -> None:
        """Warns on the first rank, and keeps that as a record."""
        if self.metrics is not None:
            warn(f"{name}: {message}")
            self.write("warning", {"name": name, "message": message})

    def _refuse_non_finite(self, stage: Stage, last: tuple[Step, LateReading] | None) -> None:
        if last is not None:
            step, reading = last
            refuse_faulty(reading.read(), self.optimizer, self.precision, stage.name, step)


def run_stages(
    trainer: Trainer,
    stages: Mapping[int, Callable[[], Stage]],
    before: Callable[[Stage], None] = lambda _: None,
) -> None:
    """Takes the remaining steps of a run's stages, in the order of their numbers.

    stages: each is made when it is reached. before: is called with the first one, where no step was taken yet. Raises
    as `Trainer.run`.
    """
    for number in sorted(stages):
        if number < trainer.position.stage:
            continue
        stage, fresh = stages[number](), trainer.position.stage == 0
        trainer.enter(stage)
        if fresh:
            before(stage)
        trainer.run(stage)
