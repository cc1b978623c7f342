"""The time of a step: compute, waiting for the slowest rank, sums of gradients that nothing hides, update and data.

    step = micro-batches x one + waiting + sums + update + data

One micro-batch takes its matrix products at a share of the peak, and what stands between them at the rate of memory;
or the host's launches, if these take longer. Sums take a ring's 2 (R - 1) / R of the gradient's bytes over the slowest
link.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from bertsmith.model.config import BertConfig
from bertsmith.training.planning.gpus import Gpu
from bertsmith.training.planning.memory import kept_bytes
from bertsmith.training.planning.model_size import parameters
from bertsmith.training.planning.work import Batch

# Chosen once, for all GPUs, precisions and lengths. The first two are fitted to all of NVIDIA's rows at once.
LINK_SHARE = 0.5
"""Of a link's data sheet that a sum of gradients reaches."""
SPREAD = 0.01
"""Of the speeds of like ranks, as a standard deviation: all wait for the slowest of R, sqrt(2 ln R) of it behind."""
MEMORY_SHARE = 0.75
"""Of the data sheet's memory rate that pointwise work and updates reach."""
VISITS = 4
"""To every number that is kept for the backward pass: written and read forward, read backward, and its gradient."""
_HOP_SECONDS = 15e-6
_LAUNCHES_A_LAYER, _LAUNCH_SECONDS = 40, 5e-6
_BACKWARD = 2 / 3
UPDATE_BYTES = {"lamb": 40, "adamw": 28}
"""Read and written for a parameter: AdamW reads gradient, weight and two moments and writes three of them; LAMB, which
moves weights once it knows the norms, reads weight and moments again."""
TOKENS_BUILT_A_SECOND = 4.7e6
"""Batches of 128 by one thread (docs/speed.md, reading back); they are built while the step before is computed."""


@dataclass(frozen=True)
class Exchange:
    """What ranks exchange in a step, in bytes of a rank. summed: gradients. last: of these, what is complete only when
    the backward pass ends. hides: whether sums run beside the last backward pass. gathered: weights that a micro-batch
    gathers, where they are sharded."""

    summed: float
    last: float = 0.0
    hides: bool = False
    gathered: float = 0.0


USUAL_HOST = 8
"""How many GPUs share the network adapters that `GPUS` has."""


@dataclass(frozen=True)
class Links:
    """Bytes a second that a rank sends to another of its host, and a host to other hosts, as reached."""

    inside: float
    across: float

    def seconds(self, count: float, hosts: int, ranks: int) -> float:
        """Of a ring over all ranks for so many bytes of each, one way."""
        slowest = min(self.inside, self.across) if hosts > 1 else self.inside
        hops = ranks // hosts - 1 + (hosts - 1)
        return (ranks - 1) / ranks * count / slowest + _HOP_SECONDS * hops


@dataclass(frozen=True)
class RankWork:
    """A rank's share of a step: micro-batches, and seconds for one of them, for the update, and for building data."""

    micro_batches: float
    micro_batch: float
    update: float
    data: float = 0.0


@dataclass(frozen=True)
class StepSeconds:
    """Where the time of a step goes."""

    compute: float
    waiting: float
    sums: float
    update: float
    data: float

    @property
    def total(self) -> float:
        return float(sum(vars(self).values()))


PARTS = tuple(each.name for each in fields(StepSeconds))


def step_seconds(work: RankWork, exchange: Exchange, links: Links, hosts: int, ranks: int) -> StepSeconds:
    """Of a step of all ranks. What ranks wait for each other comes from `SPREAD`."""
    compute = work.micro_batches * work.micro_batch
    waiting = compute * SPREAD * math.sqrt(2 * math.log(ranks))
    sums = 0.0
    if ranks > 1:
        sums = 2 * links.seconds(exchange.summed, hosts, ranks)
        if exchange.hides:
            last = 2 * links.seconds(exchange.last, hosts, ranks)
            sums = last + max(0.0, sums - last - _BACKWARD * work.micro_batch)
        gathers = links.seconds(exchange.gathered, hosts, ranks) if exchange.gathered else 0.0
        sums += work.micro_batches * max(0.0, gathers - work.micro_batch)
    known = compute + waiting + sums + work.update
    return StepSeconds(compute, waiting, sums, work.update, max(0.0, work.data - known))


def between_products(gpu: Gpu, config: BertConfig, batch: Batch, half: bool) -> float:
    """Seconds for what is no matrix product in a micro-batch."""
    kept = config.num_hidden_layers * kept_bytes(config, batch.tokens, half)
    return VISITS * kept / (MEMORY_SHARE * gpu.memory_rate)


def micro_batch_seconds(
    gpu: Gpu, precision: str, product_share: float, config: BertConfig, batch: Batch, pooled: bool = False
) -> float:
    """Of one micro-batch on one GPU. product_share: of the peak, that products reach."""
    products = batch.flop(config, pooled) / (product_share * gpu.peak(precision))
    computed = products + between_products(gpu, config, batch, is_half(precision))
    return max(computed, (config.num_hidden_layers + 2) * _LAUNCHES_A_LAYER * _LAUNCH_SECONDS)


def update_seconds(gpu: Gpu, config: BertConfig, optimizer: str) -> float:
    """Of one update of all parameters."""
    return UPDATE_BYTES[optimizer] * parameters(config).total / (MEMORY_SHARE * gpu.memory_rate)


def links_of(gpu: Gpu, of_host: int = USUAL_HOST) -> Links:
    """Those of a host's GPUs. of_host: how many it has; with fewer it is taken to have as many fewer adapters."""
    return Links(LINK_SHARE * gpu.inside, LINK_SHARE * gpu.across * min(1.0, of_host / USUAL_HOST))


def is_half(precision: str) -> bool:
    """Whether matrix products read and write two bytes a number."""
    return precision in ("bf16", "fp16")
