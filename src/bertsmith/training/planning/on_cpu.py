"""What a run costs on this machine's CPU: a few layers of its model are trained for a second or two, right now.

A stop-watch decides nothing here but what a plan says. The model has all of its widths and few of its layers, so that
one more layer, the rest (embeddings, word head), and the update are known separately. Ranks that would share the
machine run at the same time, each in a thread of its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch

from bertsmith.base.device import Device, rank_threads
from bertsmith.base.layout import Ints, Layout, round_up
from bertsmith.base.log import counted
from bertsmith.base.processes import default_workers, usable_memory
from bertsmith.base.processor import this_processor
from bertsmith.batches.masking import MaskingSettings
from bertsmith.model.attention.packed import Packed
from bertsmith.model.config import BertConfig
from bertsmith.model.cpu.prepare import KERNELS, end_training, load, prepare_training
from bertsmith.model.pretraining import PretrainingModel, PretrainInputs
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.training.planning.cost import UPDATE_BYTES, Links
from bertsmith.training.planning.model_size import parameters
from bertsmith.training.planning.plan import Costs
from bertsmith.training.planning.work import Batch, Lengths, Work

Clock = Callable[[], float]

GLOO = Links(inside=1.3e9, across=0.6e9)
"""Bytes a second: of gloo on one host as docs/scaling.md has it (440.4 MB of two ranks in 337 ms); between hosts half
of 10 Gb/s Ethernet, which is assumed."""
ACCUMULATED_BYTES = 12
"""Read and written for a parameter to add a micro-batch's gradient to those before it."""
_LAYERS = 3
_FLOP = 5e10
_LEAST_TOKENS, _MOST_TOKENS = 512, 4096
_SECONDS, _MOST_REPEATS = 0.5, 4


@dataclass(frozen=True)
class Timed:
    """Seconds a token of one layer and of all else, forward and backward, with sequences of some stretch's lengths."""

    layer: float
    rest: float


@dataclass(frozen=True)
class Measuring:
    """What is timed. lengths: of the sequences of each stretch, by its name. masking: None for a model without a word
    head. optimizer: lamb or adamw, which `make_optimizer` makes."""

    config: BertConfig
    device: Device
    lengths: dict[str, Lengths]
    masking: MaskingSettings | None
    optimizer: str
    make_optimizer: Callable[[PretrainingModel], ClippedOptimizer]


def at_once(ranks: int, threads: int, cores: int) -> tuple[int, float]:
    """How many ranks are timed together, whose threads fill the cores; and how many times as long it takes where all
    ranks have more threads than there are cores."""
    together = min(ranks, max(1, cores // threads))
    return together, max(1.0, ranks * threads / cores)


def measure(measuring: Measuring, ranks: int, base: float) -> Costs:
    """The costs of each of so many ranks that share this machine, timed. base: bytes of this process before."""
    cores, before = default_workers(), torch.get_num_threads()
    threads = min(rank_threads(ranks), cores)
    together, crowded = at_once(ranks, threads, cores)
    # CPU time, of which other work on the machine takes no part. That of a process is shared by all its threads.
    clock = time.thread_time if threads == 1 else lambda: time.process_time() / (threads * together)
    torch.set_num_threads(threads)
    found = prepare_training(measuring.device.compute)
    try:
        with ThreadPoolExecutor(together, initializer=load if found == KERNELS else None) as pool:
            others = [pool.submit(_trial, measuring, clock) for _ in range(together - 1)]
            # In the main thread, whose memory glibc keeps as it does that of a run; the others only share the machine.
            timed, update = _trial(measuring, clock)
            for each in others:
                each.result()
    finally:
        end_training()
        torch.set_num_threads(before)
    timed = {name: Timed(crowded * each.layer, crowded * each.rest) for name, each in timed.items()}
    processor, config = this_processor(), measuring.config
    name = f"this machine's CPU ({processor.vendor} {processor.architecture}), {counted(threads, 'thread')} a rank"
    all_parameters = parameters(config).total * crowded * update
    added = all_parameters * ACCUMULATED_BYTES / UPDATE_BYTES[measuring.optimizer]

    def micro_batch(work: Work, batch: Batch) -> float:
        layers = config.num_hidden_layers - (0.67 if work.pooled else 0.0)
        return added + batch.tokens * (timed[work.name].rest + layers * timed[work.name].layer)

    notes = _notes(timed, config.num_hidden_layers)
    return Costs(name, notes, GLOO, usable_memory() / ranks, base, micro_batch, all_parameters)


def _notes(timed: dict[str, Timed], layers: int) -> list[str]:
    seconds = {name: each.rest + layers * each.layer for name, each in timed.items()}
    rates = ", ".join(f"{1 / each:,.0f} tokens/s and rank ({name})" for name, each in seconds.items())
    return [
        f"rate: measured just now, in CPU time, by a few layers of this model: {rates}; a machine that "
        "does other work besides takes longer",
        "sums of gradients by gloo: 1.3 GB/s on one host, measured on another machine (docs/scaling.md); 0.6 GB/s "
        "between hosts, assumed",
    ]


def _trial(measuring: Measuring, clock: Clock) -> tuple[dict[str, Timed], float]:
    """One rank's share of the measurement, and the seconds that it takes to update a parameter."""
    config, device = measuring.config, measuring.device
    layers = min(_layers(config), config.num_hidden_layers)
    model = PretrainingModel(replace(config, num_hidden_layers=layers), device.compute)

    def a_token(lengths: Lengths) -> float:
        inputs = _inputs(config, lengths, measuring.masking)
        return _best(partial(_pass, model, inputs, measuring.masking), clock) / inputs.packed.tokens

    whole = {name: a_token(lengths) for name, lengths in measuring.lengths.items()}
    optimizer = measuring.make_optimizer(model)
    optimizer.set_learning_rate(0.0)
    update = _best(optimizer.step, clock) / sum(each.numel() for each in model.parameters())
    name, first = next(iter(whole.items()))
    rest = first / 2  # of one layer, which cannot be taken away, any part will do
    if layers > 1:
        model.encoder.layers = model.encoder.layers[:1]
        lengths = measuring.lengths[name]
        share = share_of_layers(config, layers, lengths.sequence(measuring.masking))
        rest = rest_of(first, a_token(lengths), layers, share)
    return {name: Timed(max(each - rest, 0.0) / layers, rest) for name, each in whole.items()}, update


def rest_of(whole: float, one: float, layers: int, share: float) -> float:
    """Seconds of all but layers, from those of a pass of so many and of a pass of one.

    share: of the floating-point operations that layers have. They take at least half of that share of the time: all
    else mostly reads and writes memory, which is slower than products, so a smaller share comes from other work on the
    machine during one of the two passes.
    """
    return min(max(one - (whole - one) / (layers - 1), 0.0), whole * (1 - share / 2))


def share_of_layers(config: BertConfig, layers: int, sequence: Batch) -> float:
    """Of the floating-point operations of a model of so many layers, more than one."""
    whole, one = (sequence.flop(replace(config, num_hidden_layers=each)) for each in (layers, 1))
    return (whole - one) / (layers - 1) * layers / whole


def _layers(config: BertConfig) -> int:
    """How many are timed: of the widest models two, so that a plan of two ranks takes less than ten seconds."""
    return _LAYERS if _flop_of_token(config) * _LEAST_TOKENS <= 2 * _FLOP else _LAYERS - 1


def _flop_of_token(config: BertConfig) -> float:
    return Batch(1, 0, 0, 0).flop(replace(config, num_hidden_layers=_LAYERS))


def _best(work: Callable[[], object], clock: Clock) -> float:
    """The shortest of some repeats, of which the first one finds memory."""
    found, end = list[float](), time.perf_counter() + _SECONDS
    while len(found) < 2 or (len(found) < _MOST_REPEATS and time.perf_counter() < end):
        start = clock()
        work()
        found.append(clock() - start)
    return min(found)


def _pass(model: PretrainingModel, inputs: PretrainInputs, masking: MaskingSettings | None) -> None:
    """Forward and backward, as the first micro-batch of a step."""
    model.zero_grad(set_to_none=True)
    if masking is None:
        hidden = model.encoder(inputs.input_ids, inputs.token_type_ids, inputs.position_ids, inputs.packed)
        hidden.mean().backward()
    else:
        losses = model.losses(inputs)
        loss = losses.masked.loss + losses.next_sentence.loss
        loss.backward()  # type: ignore[no-untyped-call]


def _inputs(config: BertConfig, lengths: Lengths, masking: MaskingSettings | None) -> PretrainInputs:
    """A micro-batch of random pieces with the stretch's lengths: few for a second, many enough for full speed."""
    draw = np.random.default_rng(0)
    wanted = int(min(_MOST_TOKENS, max(_LEAST_TOKENS, _FLOP / _flop_of_token(config))))
    mean = float(lengths.values.mean())
    count = max(2, round(wanted / mean))
    chosen: Ints = np.quantile(lengths.values, (np.arange(count) + 0.5) / count).astype(np.int64)
    asked = Layout.from_lengths(draw.permutation(chosen))
    layout = asked.filled()
    masked = round_up(int((masking or MaskingSettings()).predictions(asked.lengths).sum()))
    positions = np.sort(draw.choice(asked.tokens, masked, replace=False))
    return PretrainInputs(
        input_ids=torch.from_numpy(draw.integers(0, config.vocab_size, layout.tokens)),
        token_type_ids=torch.zeros(layout.tokens, dtype=torch.int64),
        position_ids=torch.from_numpy(layout.positions),
        packed=Packed(layout),
        masked_positions=torch.from_numpy(positions),
        masked_labels=torch.from_numpy(draw.integers(0, config.vocab_size, masked)),
        next_sentence_labels=torch.zeros(layout.sequences, dtype=torch.int64),
    )
