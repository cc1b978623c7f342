"""A plan: what a run needs on one host and on many, as numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.training.planning.cost import TOKENS_BUILT_A_SECOND, Exchange, Links, RankWork, StepSeconds, step_seconds
from bertsmith.training.planning.memory import Held, largest, memory
from bertsmith.training.planning.work import FORWARD, Batch, Cut, Cutter, Work

HOSTS = tuple(2**power for power in range(8))
"""How many hosts a plan is made for."""
_FITS = 0.95
MANY_EPOCHS = 100
_HOUR = 3600


@dataclass(frozen=True)
class Costs:
    """What a rank costs. name: of what it computes on. notes: where the rates come from. capacity: bytes of memory of a
    rank. base: of these, what is taken before there is a model. micro_batch: seconds of one of a stretch, forward and
    backward. update: seconds of an update of all parameters."""

    name: str
    notes: Sequence[str]
    links: Links
    capacity: float
    base: float
    micro_batch: Callable[[Work, Batch], float]
    update: float


@dataclass(frozen=True)
class Asked:
    """What a plan is made for. title: of the run. facts: lines about model and data. ranks: of a host. price: of a
    rank's hour. exchange: of a step. held: of a rank. can_checkpoint: whether the run has gradient checkpointing."""

    title: str
    facts: Sequence[str]
    precision: str
    works: Sequence[Work]
    cut: Cutter
    most_tokens: int
    ranks: int
    price: float
    exchange: Exchange
    held: Held
    can_checkpoint: bool = True


@dataclass(frozen=True)
class Stage:
    """A stretch on so many ranks. evaluation: seconds of all measurements of held-out sequences."""

    work: Work
    cut: Cut
    seconds: StepSeconds
    evaluation: float
    flop: float

    @property
    def hours(self) -> float:
        return (self.work.steps * self.seconds.total + self.evaluation) / _HOUR


@dataclass(frozen=True)
class OnHosts:
    """The run on so many hosts. stages: none where there are more ranks than sequences in a step."""

    hosts: int
    ranks: int
    price: float
    stages: Sequence[Stage]

    @property
    def hours(self) -> float:
        return sum(each.hours for each in self.stages)

    @property
    def money(self) -> float:
        return self.hours * self.ranks * self.price


@dataclass(frozen=True)
class Plan:
    """many: the run on so many hosts as `HOSTS` has. memory: of a rank on one host, by part. fitting: the most tokens
    of a micro-batch that fit."""

    asked: Asked
    costs: Costs
    many: Sequence[OnHosts]
    memory: dict[str, float]
    fitting: int

    @property
    def one(self) -> OnHosts:
        """The run on one host."""
        return self.many[0]

    @property
    def needed(self) -> float:
        """Bytes of a rank."""
        return sum(self.memory.values())

    @property
    def warnings(self) -> list[str]:
        """What is wrong with it, a line each."""
        found = []
        epochs = sum(each.epochs for each in self.asked.works if each.sequence.masked)
        if epochs > MANY_EPOCHS:
            found.append(f"the run goes through its corpus {epochs:,.0f} times; BERT went through its own 40 times")
        if self.needed > _FITS * self.costs.capacity:
            advice = f"use at most --micro-batch-tokens {self.fitting}" if self.fitting else "no micro-batch fits"
            if self.asked.can_checkpoint and not self.asked.held.checkpointing:
                advice += ", or --gradient-checkpointing" if self.fitting else "; --gradient-checkpointing needs less"
            needed, capacity = self.needed / 1e9, self.costs.capacity / 1e9
            found.append(f"this does not fit: a rank needs {needed:.1f} GB, and {capacity:.1f} GB are there; {advice}")
        return found


def make_plan(asked: Asked, costs: Costs) -> Plan:
    """The plan of a run with these costs."""
    many = [on_hosts(asked, costs, hosts) for hosts in HOSTS]
    if not many[0].stages:
        fewest = min(work.batch for work in asked.works)
        what = f"a step has {fewest:,.0f} sequences, and {asked.ranks:,} ranks are to share it"
        raise BertsmithError(what, "--gpus", f"use at most {fewest:,.0f}, or a larger batch")
    held = replace(asked.held, base=costs.base, ranks=asked.ranks)
    worst = max((stage.cut for stage in many[0].stages), key=lambda cut: sum(memory(held, cut).values()))

    def of_tokens(tokens: int) -> Cut:
        # Exactly so many, because from some number on masks are kept in bits.
        return Cut(2, replace(worst.batch.times(tokens / worst.batch.tokens), tokens=tokens))

    fitting = largest(held, of_tokens, room=_FITS * costs.capacity, most=64 * asked.most_tokens)
    return Plan(asked, costs, many, memory(held, worst), fitting)


def on_hosts(asked: Asked, costs: Costs, hosts: int) -> OnHosts:
    """The run on so many hosts."""
    ranks = hosts * asked.ranks
    if any(work.batch < ranks for work in asked.works):
        return OnHosts(hosts, ranks, asked.price, [])
    return OnHosts(hosts, ranks, asked.price, [_stage(asked, costs, work, hosts) for work in asked.works])


def _stage(asked: Asked, costs: Costs, work: Work, hosts: int) -> Stage:
    ranks = hosts * asked.ranks
    cut = asked.cut(work, ranks)
    second = costs.micro_batch(work, cut.batch)
    again = 1 + FORWARD if asked.held.checkpointing else 1
    shared = ranks if asked.held.sharded else 1
    data = cut.micro_batches * cut.batch.tokens / TOKENS_BUILT_A_SECOND
    seconds = step_seconds(
        RankWork(cut.micro_batches, again * second, costs.update / shared, data),
        asked.exchange,
        costs.links,
        hosts,
        ranks,
    )
    evaluation = FORWARD * second * work.evaluated / (cut.batch.sequences * ranks)
    flop = work.steps * work.sequence.times(work.batch).flop(asked.held.config, work.pooled)
    return Stage(work, cut, seconds, evaluation, flop)


def as_record(plan: Plan) -> dict[str, Any]:
    """All figures, as JSON holds them."""
    asked = plan.asked
    return {
        "run": asked.title,
        "device": plan.costs.name,
        "ranks_of_a_host": asked.ranks,
        "precision": asked.precision,
        "parameters": asked.held.size.total,
        "rates": list(plan.costs.notes),
        "facts": list(asked.facts),
        "warnings": plan.warnings,
        "memory_bytes": {"parts": plan.memory, "needed": plan.needed, "capacity": plan.costs.capacity},
        "largest_micro_batch_tokens": plan.fitting,
        "stages": [_stage_record(each) for each in plan.one.stages],
        "tokens": sum(each.tokens for each in asked.works),
        "flop": sum(each.flop for each in plan.one.stages),
        "hours": plan.one.hours,
        "price_of_an_hour": asked.price,
        "money": plan.one.money,
        "hosts": [
            {"hosts": each.hosts, "ranks": each.ranks, "hours": each.hours, "money": each.money}
            for each in plan.many
            if each.stages
        ],
    }


def _stage_record(stage: Stage) -> dict[str, Any]:
    work = stage.work
    return {
        "name": work.name,
        "sequence_length": work.length,
        "steps": work.steps,
        "sequences_of_a_step": work.batch,
        "tokens": work.tokens,
        "epochs": work.epochs,
        "flop": stage.flop,
        "micro_batches": stage.cut.micro_batches,
        "micro_batch": asdict(stage.cut.batch),
        "seconds_per_step": {**asdict(stage.seconds), "total": stage.seconds.total},
        "evaluation_seconds": stage.evaluation,
        "hours": stage.hours,
    }
