"""The training loop of one phase: step, log, evaluate, save, stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import Progress, say, warn
from bertsmith.base.ranks import any_over_ranks, is_first, rank
from bertsmith.base.streams import stream_key
from bertsmith.batches.loader import Loader
from bertsmith.batches.packing import PretrainBatch
from bertsmith.batches.steps import Step
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.training.checkpoints import Position, save_checkpoint
from bertsmith.training.evaluate import baselines, evaluate
from bertsmith.training.late import LateReading
from bertsmith.training.meters import Meter, MetricsFile
from bertsmith.training.step import Compiled, train_step
from bertsmith.training.stopping import StoppedAfterSaving, StopSignal

# Compiled micro-batches have room for steps with more tokens than most; where that is over a twentieth it is said.
_LEAST_FILL = 0.95


@dataclass(frozen=True)
class Cadence:
    """Steps between log lines, held-out evaluations and checkpoints; and how many checkpoints are kept."""

    log_every: int
    evaluate_every: int
    save_every: int
    keep: int


@dataclass(frozen=True)
class PhaseWork:
    """One phase as the loop sees it. learning_rate: of update 1..steps. loader: of the updates after a given one."""

    number: int
    steps: int
    learning_rate: Callable[[int], float]
    loader: Callable[[int], Loader]
    held_out: Sequence[PretrainBatch]


@dataclass
class Trainer:
    """What training changes and where it writes.

    seed: of dropout. go_on: what the user is told to do after a stop. alphabetic: bool[V]. unigrams: int64[V], of the
    train split. compiled: the model and the optimizer, where they run compiled.
    """

    model: PretrainingModel
    optimizer: ClippedOptimizer
    device: torch.device
    folder: Path
    metrics: MetricsFile | None
    cadence: Cadence
    alphabetic: NDArray[np.bool_]
    unigrams: NDArray[np.int64]
    position: Position
    stop: StopSignal
    seed: int
    go_on: str
    compiled: Compiled | None = None
    _skipped_told: float = field(default=0.0, init=False)
    _fill_told: set[int] = field(default_factory=set, init=False)

    def run_phase(self, work: PhaseWork) -> None:
        """Takes the steps of a phase that are not done yet.

        Raises StoppedAfterSaving after a signal, and BertsmithError when a loss or gradient is not finite.
        """
        meter, previous = Meter(self.device), None
        if self.position.since_log and is_first():
            meter.restore(self.position.since_log)
        self.position = replace(self.position, since_log=[])
        self.model.train()
        with (
            work.loader(self.position.phase_step) as loader,
            Progress(f"phase {work.number}", work.steps, "steps") as progress,
        ):
            progress.skip(self.position.phase_step)
            for step in loader:
                rate = work.learning_rate(step.number + 1)
                self.optimizer.set_learning_rate(rate)
                # Keyed anew for each step and rank: ranks drop different units, and a resumed run the same as before.
                torch.manual_seed(stream_key(self.seed, "dropout", rank(), self.position.step) >> 1)
                counts = (step.totals.masked, step.totals.sequences)
                sums = train_step(self.model, self.optimizer, step.micro_batches, counts, self.device, self.compiled)
                meter.add(sums, self.optimizer.gradient_norm)
                # The verdict of the step before is read, so that the device is never waited for.
                self._refuse_non_finite(previous)
                previous = (step, LateReading(self._verdict(sums.faulty)))
                self._advance(step)
                note = ""
                if self._due(self.cadence.log_every, work):
                    self._refuse_non_finite(previous)
                    note = self._log(work, meter, rate, loader.waited_seconds)
                progress.advance(1, note)
                meter.pause(self._evaluate_and_save(work, previous, lambda: meter.state(loader.waited_seconds)))
        self._refuse_non_finite(previous)

    def _advance(self, step: Step) -> None:
        done = self.position
        self.position = replace(
            done, step=done.step + 1, phase_step=step.number + 1, tokens=done.tokens + step.totals.tokens
        )

    def _due(self, every: int, work: PhaseWork) -> bool:
        done = self.position.phase_step
        return done == work.steps or (every > 0 and done % every == 0)

    def _evaluate_and_save(
        self, work: PhaseWork, last: tuple[Step, LateReading] | None, since_log: Callable[[], list[float]]
    ) -> float:
        start = time.perf_counter()
        if work.held_out and self._due(self.cadence.evaluate_every, work):
            self._refuse_non_finite(last)
            self.evaluate(work)
        # A signal may reach one rank a step before another, and all must leave after the same step.
        stopping, interrupted = any_over_ranks((self.stop.requested, self.stop.interrupted), self.device)
        if self._due(self.cadence.save_every, work) or stopping:
            self._refuse_non_finite(last)
            self.save(since_log())
        if stopping:
            raise StoppedAfterSaving(f"stopped at step {self.position.step}; {self.go_on}", interrupted)
        return time.perf_counter() - start

    def _log(self, work: PhaseWork, meter: Meter, rate: float, waited: float) -> str:
        record = meter.read(waited)
        left = (work.steps - self.position.phase_step) * record["seconds_per_step"]
        self._tell_fill(work.number, record["fill"])
        scaling = self._scaling()
        self.write("train", {"learning_rate": rate, **record, **scaling, "seconds_left_in_phase": left})
        return (
            f"loss {record['loss']:.3f}, masked words {record['masked_accuracy']:.1%}, "
            f"{record['tokens_per_second']:,.0f} tokens/s"
        )

    def _scaling(self) -> dict[str, float]:
        """What a line tells of the loss scale, where there is one; says which updates were skipped since the last."""
        if self.optimizer.loss_scale is None:
            return {}
        scaling = {name: float(value) for name, value in self.optimizer.loss_scale.state_dict().items()}
        scale, skipped = scaling["scale"], scaling["skipped_updates"]
        if is_first() and skipped > self._skipped_told:
            warn(
                f"{skipped - self._skipped_told:,.0f} updates were skipped up to step {self.position.step:,}, because "
                f"gradients overflowed fp16; the loss scale is {scale:g} now ({skipped:,.0f} skipped since the start)"
            )
        self._skipped_told = skipped
        return {"loss_scale": scale, "skipped_updates": skipped}

    def _tell_fill(self, phase: int, fill: float) -> None:
        """Warns, once a phase, where compiled micro-batches are filled up with much that nothing is asked of."""
        if self.compiled is not None and fill < _LEAST_FILL and phase not in self._fill_told and is_first():
            self._fill_told.add(phase)
            warn(
                f"phase {phase}: only {fill:.1%} of the slots of its compiled micro-batches hold tokens; steps of more "
                "sequences, or another micro_batch_tokens, fill them better"
            )

    def evaluate(self, work: PhaseWork) -> None:
        """Evaluates on held-out documents and writes the figures beside their baselines."""
        self._measure("evaluation", f"after step {self.position.step:,}", work.held_out)

    def _measure(self, kind: str, when: str, held_out: Sequence[PretrainBatch], **values: int) -> None:
        found = evaluate(self.model, held_out, self.alphabetic, self.device, self.compiled)
        beside = baselines(held_out, self.unigrams, self.alphabetic)
        self.write(kind, {**values, **found.as_record(), **beside.as_record()})
        say(
            f"held out, {when}: masked words {found.masked_accuracy:.1%} right, loss "
            f"{found.masked_loss:.3f} (by frequency alone {beside.most_frequent_accuracy:.1%} and "
            f"{beside.unigram_loss:.3f}); next sentence {found.next_sentence_accuracy:.1%}"
        )

    def finish(self, held_out: dict[int, Sequence[PretrainBatch]]) -> None:
        """Measures the finished model at every length it was trained at; writes the record that ends a run.

        held_out: batches by sequence length.
        """
        for length, batches in held_out.items():
            if batches:
                self._measure("final", f"finished, at {length} tokens", batches, sequence_length=length)
        self.write("end", {"tokens": self.position.tokens})

    def save(self, since_log: list[float]) -> None:
        """Writes a checkpoint, on the first rank. since_log: the state of the meter."""
        if is_first():
            position = replace(self.position, since_log=since_log)
            save_checkpoint(self.folder, position, self.model, self.optimizer, self.cadence.keep)

    def write(self, kind: str, values: dict[str, Any]) -> None:
        """Puts a record of this kind and step into the metrics, on the first rank."""
        if self.metrics is not None:
            where = {"kind": kind, "step": self.position.step, "phase": self.position.phase}
            self.metrics.write({**where, "phase_step": self.position.phase_step, **values})

    def _verdict(self, faulty: torch.Tensor | None) -> torch.Tensor:
        """Of the last step, fp32[1 + ranks]: 1 where training can go on; 1 for each rank with a gradient at fault."""
        sound = self.optimizer.sound.float().view(1)
        return torch.cat([sound, 1 - sound if faulty is None else faulty])

    def _refuse_non_finite(self, last: tuple[Step, LateReading] | None) -> None:
        if last is None:
            return
        step, (sound, *faulty) = last[0], last[1].read()
        if sound:
            return
        first = step.number * step.totals.sequences
        named = ", ".join(str(number) for number, fault in enumerate(faulty) if fault) or "of all together"
        raise BertsmithError(
            f"the gradient is not finite (NaN or infinity){self._at_scale()}, so its update was skipped and training "
            "stopped",
            f"phase {self.position.phase}, step {step.number + 1}, rank {named}, instances {first:,} to "
            f"{first + step.totals.sequences - 1:,} of the phase",
            "a resumed run keeps its recipe: start another --out, with a lower learning rate or --precision fp32",
        )

    def _at_scale(self) -> str:
        scale = self.optimizer.loss_scale
        return "" if scale is None else f" even at the lowest loss scale, {scale.floor:g}"
