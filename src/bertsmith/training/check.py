"""`pretrain --check`: whether model, data, optimizer and device fit together, in about a minute, without a run.

A batch of a few sequences is overfitted, a micro-batch of the recipe's size is timed for each phase, and a
checkpoint is written and read back. What a run would take is worked out from that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from bertsmith.base import log
from bertsmith.base.device import Device
from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import StrPath, as_path, check_place, check_utf8
from bertsmith.base.layout import IGNORED_LABEL
from bertsmith.base.log import Progress, duration, say, warn
from bertsmith.base.processor import this_processor
from bertsmith.batches.packing import PretrainBatch
from bertsmith.batches.samples import OneShard
from bertsmith.batches.steps import build_batch
from bertsmith.corpus.shards import Corpus
from bertsmith.model.flop import step_flop
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.recipes.schema import Phase, Recipe
from bertsmith.training.budget import device_flops
from bertsmith.training.checkpoints import Position, load_checkpoint
from bertsmith.training.checkpoints.folders import write_step
from bertsmith.training.checkpoints.position import step_folder
from bertsmith.training.checkpoints.state import state_of
from bertsmith.training.planning.model_size import parameters
from bertsmith.training.pretraining.compiled import choose_compiled
from bertsmith.training.pretraining.health import VISIBLE_SHARE
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.pretraining.phases import check_steps
from bertsmith.training.records.meters import memory_bytes
from bertsmith.training.records.sinks import Outputs
from bertsmith.training.run import micro_batch_tokens, only_training, start_device
from bertsmith.training.shape import masking_of, order_of
from bertsmith.training.step import train_step
from bertsmith.training.work import CPU_TOKENS, Work, config_for, model_of, optimizer_of, tokens_of_run, work_of

# Tokens and updates by which a batch is overfitted: few, so that BERT-base on two cores takes half a minute.
_TOKENS = 256
_UPDATES, _LEAST_UPDATES, _WARM_UP = 400, 25, 10
# The loss is then below this share of what the batch's own frequencies give.
_OVERFITTED = 0.5
# A loss that after so many updates is no lower, in nats, than at first does not fall later.
_FLAT_UPDATES, _FLAT = 60, 0.02
# On one batch without dropout no rate that fits raises the loss so far, in nats.
_RISEN = 0.5
_MOST_SECONDS = 120.0
_TOO_LOW = "try ten times the learning rate: it is too low; if the loss then stays too, something does not train"
# Of what takes longer, or has larger layers than BERT-base, the time is logged.
_LONG_SECONDS, _LARGE = 90.0, 12 * 12 * 768 * 768
_SAVED_BYTES = 12  # of a parameter and its two moments


@dataclass(frozen=True)
class Checked:
    """What a check found.

    loss_before, loss_after: of masked words on the batch that was learned, in nats. frequencies: what the batch's
    own frequencies give. updates: that it took. micro_batch_seconds, update_seconds: of the recipe's size, in the first
    phase. step_seconds, run_seconds: worked out from them, for one such device. memory_bytes: at most, of all phases.
    """

    loss_before: float
    loss_after: float
    frequencies: float
    updates: int
    micro_batch_seconds: float
    update_seconds: float
    step_seconds: float
    run_seconds: float
    memory_bytes: float
    save_seconds: float
    load_seconds: float


@dataclass(frozen=True)
class _Learned:
    """Losses of masked words on the batch that was learned, in nats, at first, at last and at most; the updates; and
    whether the time was up before it was learned."""

    before: float
    after: float
    highest: float
    updates: int
    timed_out: bool


def check_pretraining(
    recipe: Recipe | str | Path,
    corpus: Corpus | str | Path,
    out: StrPath,
    init_from: StrPath | None = None,
    also_evaluate: Corpus | str | Path | None = None,
) -> Checked:
    """Checks a run on one device, says what it finds, and leaves nothing in `out`; arguments as of `pretrain`.

    Raises BertsmithError for what does not fit together, where the batch is not learned, and where `out` cannot be
    made.
    """
    out = as_path(out, "out")
    check_utf8(out)
    check_place(out)
    work = work_of(recipe, corpus, init_from, outputs=Outputs(also_evaluate=also_evaluate))
    recipe = work.recipe
    with only_training():
        device, _ = start_device(recipe.device, recipe.precision, recipe.compile != "false", {}, out)
        return _checked(work, device, out)


def _checked(work: Work, device: Device, out: Path) -> Checked:
    recipe, corpus = work.recipe, work.corpus
    phases = recipe.phases
    first, phase = min(phases.items())
    _tell_time(work, phases.values(), device)
    model = model_of(work, device)
    most = tokens_of_run(recipe, {}, model, None, device)
    with log.as_details():  # what is timed below is not compiled
        compiled = recipe.parallel == "replicate" and choose_compiled(recipe.compile, device.torch_device)
    check_steps(replace(recipe, micro_batch_tokens=most), None, compiled)
    few = _batch(recipe, corpus, first, _TOKENS)
    batches = {number: _batch(recipe, corpus, number, most) for number in phases}
    _refuse_visible(batches[first])
    optimizer = optimizer_of(recipe, model, device)
    objective = Pretraining(model, device.torch_device)
    frequencies = _entropy(few)
    learned = _overfit(objective, optimizer, few, phase)
    _judge(learned, frequencies, phase)
    save, load, copy = _saved_and_read(objective, optimizer, out)
    timed = {
        number: _timed(objective, optimizer, batch, accumulates=phases[number].global_batch > batch.sequences)
        for number, batch in batches.items()
    }
    step, run = _times(recipe, phases, timed, batches)
    memory = memory_bytes(device.torch_device)
    copied = f", {log.size(sum(each.nbytes for each in copy.values()))} of it the copy of a save"
    say(f"memory: {log.size(memory)} at most, with these micro-batches{copied if device.is_cpu else ''}")
    losses = learned.before, learned.after, frequencies, learned.updates
    return Checked(*losses, *timed[first], step, run, memory, save, load)


def _batch(recipe: Recipe, corpus: Corpus, number: int, tokens: int) -> PretrainBatch:
    """A micro-batch of about so many tokens of a phase's sequences, and of at least one."""
    # One shard, so that no index of a whole epoch is made.
    order = order_of(recipe, number, OneShard(corpus, 0))
    references = order.instances(0, min(recipe.phase(number).global_batch, max(1, tokens // 8)))
    count = max(1, int(np.searchsorted(np.cumsum(references.lengths), tokens, side="right")))
    masking = masking_of(recipe, number).densest()  # of the step that needs the most memory
    return build_batch(order.epochs, references[np.arange(min(count, len(references.lengths)))], masking)


def _tell_time(work: Work, phases: Collection[Phase], device: Device) -> None:
    """Of a model for which it is long, before it is made: about what the overfit test and the micro-batches take."""
    recipe, config = work.recipe, config_for(work.recipe, work.corpus)
    asked = CPU_TOKENS if recipe.micro_batch_tokens == "auto" else recipe.micro_batch_tokens
    with log.as_details():  # it is logged when it is used
        most = micro_batch_tokens(asked, config, recipe.longest, device)
    # Large models, for which this matters, take some tens of updates. Of each phase three micro-batches are taken, and
    # one more is tried where the recipe leaves its size to the device.
    first = next(iter(phases)).sequence_length
    parts = [(first, _UPDATES / 10 * _TOKENS)]
    parts += [(each.sequence_length, 3 * min(most, each.global_batch * each.sequence_length)) for each in phases]
    parts += [(recipe.longest, most)] * (recipe.micro_batch_tokens == "auto")
    rate = masking_of(recipe, 1).densest().rate
    flop = sum(step_flop(config, tokens, tokens * length, tokens * rate) for length, tokens in parts)
    seconds = flop / device_flops(device, this_processor(), torch.get_num_threads())
    size = parameters(config)
    if seconds > _LONG_SECONDS or size.layers > _LARGE:
        saved = f"{log.size(_SAVED_BYTES * size.total)} are written and read"
        say(f"check: overfit test and micro-batches take about {duration(seconds)}, and {saved}")


def _overfit(objective: Pretraining, optimizer: ClippedOptimizer, batch: PretrainBatch, phase: Phase) -> _Learned:
    """By the recipe's optimizer and its highest rate, without dropout, until the batch is learned, its loss does not
    fall, or the time is up."""
    objective.model.eval()
    losses, timed_out, goal = list[float](), False, _OVERFITTED * _entropy(batch)
    end = time.perf_counter() + _MOST_SECONDS
    with Progress("overfit test", None, "update") as progress:
        while len(losses) <= _UPDATES and not timed_out:
            optimizer.set_learning_rate(phase.learning_rate * min(1.0, (len(losses) + 1) / _WARM_UP))
            losses.append(_step(objective, optimizer, [batch]))
            progress.advance(1, f"loss {losses[-1]:.2f}")
            # At the highest rate it must be so as well.
            late = len(losses) > _LEAST_UPDATES
            if (late and losses[-1] <= goal) or not math.isfinite(losses[-1]) or _is_flat(losses):
                break
            timed_out = late and time.perf_counter() > end
    return _Learned(losses[0], losses[-1], max(losses), len(losses) - 1, timed_out)


def _is_flat(losses: Sequence[float]) -> bool:
    return len(losses) > _FLAT_UPDATES and float(np.mean(losses[-_WARM_UP:])) > losses[0] - _FLAT


def _step(objective: Pretraining, optimizer: ClippedOptimizer, batches: Sequence[PretrainBatch]) -> float:
    """One update; gives the masked-word loss before it."""
    masked = sum(len(batch.masked_labels) for batch in batches)
    pairs = sum(int(np.count_nonzero(batch.next_sentence_labels != IGNORED_LABEL)) for batch in batches)
    counts = {"masked": masked, "next_sentence": pairs}
    sums = train_step(objective, optimizer, batches, counts, objective.device)
    assert sums is not None
    return float(sums.figures[0]) / max(masked, 1)


def _refuse_visible(batch: PretrainBatch) -> None:
    """Raises BertsmithError where the words to predict stand in the input."""
    shown = float((batch.input_ids[batch.masked_positions] == batch.masked_labels).mean())
    if shown > VISIBLE_SHARE:
        raise BertsmithError(
            f"{shown:.0%} of the words to predict stand in the input as they are, so the model would learn to copy",
            "masking.mask_share, masking.random_share",
            "use BERT's 0.8 and 0.1, which show 10%",
        )


def _entropy(batch: PretrainBatch) -> float:
    """Of the labels of a batch, in nats: the loss of knowing their frequencies and nothing else."""
    _, counts = np.unique(batch.masked_labels, return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log(shares)).sum())


def _judge(learned: _Learned, frequencies: float, phase: Phase) -> None:
    """Says whether the batch was overfitted. Raises BertsmithError where nothing was learned."""
    before, after, count = learned.before, learned.after, learned.updates
    path = f"the loss of one small batch went from {before:.2f} to {after:.2f} in {count} updates"
    path += f", which took the {duration(_MOST_SECONDS)} that there are for it" if learned.timed_out else ""
    rate = f"at a learning rate of {phase.learning_rate:g}"
    if after <= _OVERFITTED * frequencies:
        say(f"overfit test: {path}; its frequencies alone would give {frequencies:.2f}: as it should be")
    elif math.isfinite(after) and after < before - (_FLAT if learned.timed_out else 1.0):  # a slow machine is no fault
        warn(f"overfit test: {path} {rate}, and is still far from 0: the rate may be too low or too high")
    else:
        is_finite = math.isfinite(after)
        risen = not is_finite or learned.highest > before + _RISEN
        most = f", {learned.highest:.2f} at most" if is_finite and risen else ""
        fix = "try a tenth of the learning rate: it is too high" if risen else _TOO_LOW
        what = f"this does not learn: {path}{most}, {rate}"
        raise BertsmithError(what, "learning_rate, optimizer", fix)


def _timed(
    objective: Pretraining, optimizer: ClippedOptimizer, batch: PretrainBatch, accumulates: bool
) -> tuple[float, float]:
    """Seconds of a micro-batch in training mode, and of an update, after a step that finds its memory. accumulates:
    whether a step of the run has several: gradients of the first are then there beside what the second one keeps."""
    objective.model.train()
    optimizer.set_learning_rate(0.0)
    _step(objective, optimizer, [batch, batch] if accumulates else [batch])
    start = time.perf_counter()
    _step(objective, optimizer, [batch])
    stepped = time.perf_counter()
    optimizer.step()
    float(optimizer.gradient_norm)  # waits for the device
    update = time.perf_counter() - stepped
    return max(stepped - start - update, 1e-6), update


def _times(
    recipe: Recipe,
    phases: Mapping[int, Phase],
    timed: Mapping[int, tuple[float, float]],
    batches: Mapping[int, PretrainBatch],
) -> tuple[float, float]:
    """Seconds of a step of the first phase, and of the run, on one such device; says them. timed: by the phases, of a
    micro-batch and an update."""
    steps, run = [], 0.0
    for number, phase in phases.items():
        batch, (micro_batch, update) = batches[number], timed[number]
        steps.append(micro_batch * phase.global_batch / batch.sequences + update)
        run += phase.steps * steps[-1]
        said = f"a micro-batch of {batch.tokens:,} tokens, in sequences of up to {phase.sequence_length}, takes"
        said += f" {duration(micro_batch)}, an update {duration(update)}, a step {duration(steps[-1])}"
        say(f"time, phase {number}: {said}")
    whole = f"the run ends after {recipe.hours:g} h" if recipe.hours else f"the run takes {duration(run)}"
    say(f"time: {whole}, on one such device, uncompiled")
    return steps[0], run


def _saved_and_read(
    objective: Pretraining, optimizer: ClippedOptimizer, out: Path
) -> tuple[float, float, dict[str, torch.Tensor]]:
    """Seconds to write a checkpoint in `out`, or in the nearest folder above that is there, and to read it; and the
    copy that a run keeps from its first save on. Raises BertsmithError where it is not the same."""
    place = next(each for each in (out, *out.absolute().parents) if each.is_dir())
    with TemporaryDirectory(prefix=f".{out.name}-check-", dir=place) as folder:
        start = time.perf_counter()
        state = {name: each.cpu().clone() for name, each in state_of(objective.model, optimizer).items()}
        write_step(Path(folder), Position(step=1), state)
        written = time.perf_counter()
        load_checkpoint(step_folder(Path(folder), 1), objective.model, optimizer)
        read = time.perf_counter()
        found = state_of(objective.model, optimizer)
        wrong = [name for name in state if not torch.equal(state[name], found[name].cpu())]
        count = sum(each.stat().st_size for each in Path(folder).rglob("*") if each.is_file())
    if wrong:
        raise BertsmithError(f"a checkpoint was read otherwise than written: {wrong[0]}", place, "try another disk")
    save, load = written - start, read - written
    say(f"checkpoint: {log.size(count)} written in {duration(save)} and read back, the same, in {duration(load)}")
    return save, load, state
