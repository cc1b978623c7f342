"""The phases of a pre-training run: what each trains on, is measured on, and how fast it learns, from the recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from bertsmith.base import ranks
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import first_of, log_choice, say, warn
from bertsmith.batches.loader import Loader, WaitFor, await_index
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.order import Order
from bertsmith.batches.packing import PretrainBatch, fix_shapes
from bertsmith.batches.shapes import FixedShapes, check_budget
from bertsmith.batches.shares import Share, agree
from bertsmith.batches.steps import StepBuilder, check_global_batch, held_out_batches
from bertsmith.corpus.shards import Corpus
from bertsmith.model.initial import CUT_NORMAL_DEVIATION
from bertsmith.optim import schedules
from bertsmith.recipes.schema import Phase, Recipe
from bertsmith.training.checkpoints import Position
from bertsmith.training.loop import Stage, Trainer, run_stages
from bertsmith.training.pace import Pace
from bertsmith.training.pretraining.continued import BEFORE, Figures, TwoTexts
from bertsmith.training.pretraining.health import Health, lacking
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.pretraining.start import check_start, check_text, check_trained_start, guessing_loss
from bertsmith.training.records.meters import read_metrics
from bertsmith.training.shape import masking_of, order_of, pairs_of

# More than any run takes; far fewer than the positions of instances that can be counted.
_UNKNOWN_STEPS = 1 << 40
_SELECT = "masked_loss"


def check_steps(recipe: Recipe, position: Position | None, compiled: bool) -> None:
    """Raises BertsmithError for a phase that is still to come and whose steps this run's ranks or shapes cannot take:
    before the run folder is claimed, and not when the phase is reached."""
    for number, phase in recipe.phases.items():
        if position is None or number >= position.stage:
            check_global_batch(phase.global_batch, ranks.world_size(), f"phase{number}.global_batch")
            if compiled:
                check_budget(budget_of(recipe), phase.sequence_length)


def run_phases(
    recipe: Recipe,
    corpus: Corpus,
    trainer: Trainer,
    objective: Pretraining,
    *,
    own: Mapping[int, Figures] | None,
    old: Corpus | None = None,
) -> None:
    """Takes the remaining steps of the recipe's phases, and measures the finished model at every length.

    own: of `own_figures`, of the model that the run starts from; None where its weights were random. old: is measured
    beside the corpus, where the trainer's objective is `SideBySide`. Raises as `Trainer.run`.
    """
    phases = recipe.phases
    lengths = list(dict.fromkeys(phase.sequence_length for phase in phases.values()))
    compiled = objective.compiled is not None
    held_out = HeldOut(recipe, corpus, compiled, None if old is None else HeldOut(recipe, old, compiled))
    spread = _spread(recipe) if own is None else None
    unweighted = type(objective) is Pretraining  # the losses of a student are weighted
    # Losses of sequences of another length do not compare.
    select = {max(phases): _SELECT} if unweighted else {}
    if trainer.metrics is not None and unweighted:
        trainer.watch = health = Health(guessing_loss(objective, spread))
        _recall(health, trainer.metrics.path)

    def measure(kind: str, when: str) -> None:
        for length in lengths:
            if texts := held_out.texts(length):
                named = f"{when}, at {length} tokens"
                trainer.measure(kind, named, texts, trainer.leave_if_stopped, sequence_length=length)

    def before(_: Stage) -> None:
        if objective.predicts and spread is not None:
            check_start(trainer, objective, held_out.of(lengths[0]), spread)
        elif objective.predicts and own is not None:
            check_trained_start(trainer, objective, held_out.of(lengths[0]), own, lengths[0])
        if trainer.metrics is not None:
            check_text(trainer, corpus)
        if old is not None:
            measure(BEFORE, "before training")

    with closing(agree(corpus.folder / "order", ranks.gathered)) as share:
        made = {
            number: partial(
                phase_stage, recipe, number, corpus, held_out, share, select.get(number, ""), trainer.wait_for
            )
            for number in phases
        }
        run_stages(trainer, made, before)
    measure("final", "finished")
    best = trainer.position.best
    found = {} if best is None else {"best_step": best.step, f"best_{_SELECT}": -best.score}
    trainer.write("end", {"tokens": trainer.position.tokens, **found})


def _recall(health: Health, path: Path) -> None:
    """Shows it what the run has recorded before. Raises BertsmithError for a record that lacks what its kind has."""
    for number, record in enumerate(read_metrics(path), start=1):
        if lacks := lacking(record):
            what = f"line {number} ({record['kind']}, step {record['step']:,}) lacks {first_of(lacks)}"
            raise BertsmithError(what, path, "remove that line, or put the file back from a copy")
        health.see(record)


@dataclass(frozen=True)
class HeldOut:
    """Held-out batches by sequence length, made once each, and always masked as BERT does, so that runs with other
    masking rates can be compared. old: those of a corpus that is measured beside this one."""

    recipe: Recipe
    corpus: Corpus
    compiled: bool = False
    old: HeldOut | None = None
    _made: dict[int, list[PretrainBatch]] = field(default_factory=dict)

    def of(self, sequence_length: int) -> list[PretrainBatch]:
        """Those of a length; none where no document was held out, which is warned of at the first asking."""
        if self.corpus.tokens("held_out"):
            if sequence_length not in self._made:
                self._made[sequence_length] = self._make(sequence_length)
        elif not self._made:
            what = "the corpus has no held-out documents, so nothing is evaluated"
            warn(f"{what}; prepare it with a larger --held-out share", of_all_ranks=True)
        return self._made.setdefault(sequence_length, [])

    def texts(self, sequence_length: int) -> list[PretrainBatch] | TwoTexts:
        """What the trainer's objective evaluates."""
        new = self.of(sequence_length)
        return new if self.old is None else TwoTexts(new, self.old.of(sequence_length))

    def _make(self, sequence_length: int) -> list[PretrainBatch]:
        batches = held_out_batches(
            self.corpus,
            sequence_length=sequence_length,
            instances=self.recipe.evaluate_instances,
            masking=MaskingSettings(special_pieces=pairs_of(self.recipe).special_pieces),
            pairs=pairs_of(self.recipe),
            micro_batch_tokens=budget_of(self.recipe),
            seed=self.recipe.seed,
        )
        return fix_shapes(batches, sequence_length, self.corpus.special.cls) if self.compiled else batches


def budget_of(recipe: Recipe) -> int:
    """The most tokens of a micro-batch, which must have been found where the recipe leaves it to the device."""
    assert recipe.micro_batch_tokens != "auto"
    return recipe.micro_batch_tokens


def phase_stage(
    recipe: Recipe,
    number: int,
    corpus: Corpus,
    held_out: HeldOut,
    share: Share | None = None,
    select: str = "",
    wait_for: WaitFor | None = None,
) -> Stage:
    """Phase `number`, 1 or 2, as the loop takes it: it continues from the weights of the one before.

    share: this rank's, of what is kept of the phase's epochs; without it nothing is kept or built ahead.
    select: the held-out figure by which the best weights are kept, "" for none. wait_for: as of `Loader`.
    """
    phase, pace = recipe.phase(number), _pace(recipe, number)
    steps_at_most = phase.steps if pace is None else _UNKNOWN_STEPS
    masking = masking_of(recipe, number)
    order = order_of(recipe, number, corpus, share.folder if share else None)
    if share:
        order.build_ahead(share, end=steps_at_most * phase.global_batch)
    if held_out.compiled and wait_for is not None:
        try:
            await_index(order, partial(order.epoch, 0), wait_for)
        except BaseException:
            order.close()
            raise
    shapes = _shapes(recipe, phase, order, masking) if held_out.compiled else None
    return Stage(
        number=number,
        kind="phase",
        label=number,
        steps=steps_at_most,
        learning_rate=schedule_of(phase) if pace is None else partial(_timed_rate, phase, pace),
        loader=lambda done: Loader(
            StepBuilder(
                order, phase.global_batch, masking, budget_of(recipe), ranks.rank(), ranks.world_size(), shapes
            ),
            start_step=done,
            stop_step=steps_at_most,
            workers=recipe.loader_workers,
            wait_for=wait_for,
        ),
        held_out=held_out.texts(phase.sequence_length),
        # NVIDIA's second phase restarts LAMB's bias correction and keeps its moments.
        begin=lambda trainer: trainer.optimizer.reset_step_count(),
        seed=recipe.seed,
        pace=pace,
        select=select,
        least=True,
    )


def _pace(recipe: Recipe, number: int) -> Pace | None:
    """That of a phase of a run that is driven by time."""
    if not recipe.hours:
        return None
    tokens = [recipe.phase1.tokens, recipe.phase2.tokens]
    until = 3600 * recipe.hours * sum(tokens[:number]) / sum(tokens)
    return Pace(until)


def _timed_rate(phase: Phase, pace: Pace, number: int) -> float:
    """The learning rate of an update, where it follows the time."""
    return schedule_of(replace(phase, steps=max(pace.steps, 1)))(pace.update(number))


def schedule_of(phase: Phase) -> Callable[[float], float]:
    """The learning rate of a phase's update k = 1, 2, ..., steps."""
    own = {"polynomial": {"power": phase.decay_power}, "warmup_stable_decay": {"decay_share": phase.decay_share}}
    for name, schedule in (("decay_power", "polynomial"), ("decay_share", "warmup_stable_decay")):
        if phase.schedule != schedule and getattr(phase, name) != getattr(Phase(), name):
            log_choice(f"{name} {getattr(phase, name)}", "without effect", f"the schedule is {phase.schedule}")
    common = {"steps": phase.steps, "warmup_share": phase.warmup, "base": phase.learning_rate}
    return partial(getattr(schedules, phase.schedule), **common, **own.get(phase.schedule, {}))


def _shapes(recipe: Recipe, phase: Phase, order: Order, masking: MaskingSettings) -> FixedShapes:
    """The shape of a compiled phase, told. It follows from the first epoch, so that a resumed run has the same."""
    shapes = FixedShapes.for_steps(
        order.epoch(0).lengths,
        masking.densest(),
        global_batch=phase.global_batch,
        ranks=ranks.world_size(),
        budget_tokens=budget_of(recipe),
        longest=phase.sequence_length,
    )
    say(
        f"phase {order.epochs.phase}: a step is {shapes.micro_batches} micro-batches a rank of {shapes.tokens:,} "
        f"slots, with room for {shapes.sequences:,} sequences and {shapes.masked:,} masked words"
        f"{' (of the highest rate)' if masking.final_rate else ''}; tokens will fill {shapes.expected_fill:.1%} of it"
    )
    return shapes


def _spread(recipe: Recipe) -> float:
    """Random scores of variance v raise the mean loss of guessing by v / 2; a fresh decoder's v is |embedding|^2."""
    deviation = CUT_NORMAL_DEVIATION * recipe.model.embedding_deviation
    return recipe.model.hidden * deviation**2 / 2
