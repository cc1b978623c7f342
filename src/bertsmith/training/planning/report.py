"""A plan as tables of text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter

from bertsmith.base.log import duration, size
from bertsmith.base.tables import aligned
from bertsmith.training.planning.cost import PARTS
from bertsmith.training.planning.plan import OnHosts, Plan, Stage

Cells = Callable[[Stage], str]


def plan_lines(plan: Plan) -> list[str]:
    """All of it."""
    asked = plan.asked
    count = f"{asked.ranks} x {plan.costs.name}" if asked.ranks > 1 else plan.costs.name
    return [
        f"{asked.title}, on {count}, {asked.precision}",
        *asked.facts,
        *plan.costs.notes,
        "",
        *_stages(plan),
        "",
        *_memory(plan),
        "",
        *_hosts(plan),
        *(f"warning: {each}" for each in plan.warnings),
    ]


def _stages(plan: Plan) -> list[str]:
    """A column for each stretch of the run, and one for all where there are several."""
    stages = plan.one.stages
    several = len(stages) > 1
    rows = [["", *(stage.work.name for stage in stages), *["all"] * several]]
    for title, cell, total in _rows(plan):
        rows.append([title, *map(cell, stages), *[total] * several])
    return aligned(rows, "lr")


def _rows(plan: Plan) -> list[tuple[str, Cells, str]]:
    """Title, cell of a stage, cell of all stages."""
    stages, one = plan.one.stages, plan.one
    money = ("money", lambda each: f"{each.hours * one.ranks * one.price:,.2f}", f"{one.money:,.2f}")
    tokens, flop = sum(each.work.tokens for each in stages), sum(each.flop for each in stages)
    return [
        ("sequences of at most", lambda each: f"{each.work.length:,} tokens", ""),
        ("in the mean", lambda each: f"{each.work.sequence.tokens:.1f}", ""),
        ("steps", lambda each: f"{each.work.steps:,}", f"{sum(each.work.steps for each in stages):,}"),
        ("sequences of a step", lambda each: f"{each.work.batch:,.6g}", ""),
        ("micro-batches a rank", lambda each: f"{each.cut.micro_batches:,.0f}", ""),
        ("slots of one", lambda each: f"{each.cut.batch.tokens:,.0f}", ""),
        ("tokens", lambda each: _count(each.work.tokens), _count(tokens)),
        ("epochs", lambda each: f"{each.work.epochs:.2f}", f"{sum(each.work.epochs for each in stages):.2f}"),
        ("FLOP", lambda each: f"{each.flop:.3g}", f"{flop:.3g}"),
        ("a step", lambda each: seconds(each.seconds.total), ""),
        *((f"  {name}", _part(name), "") for name in PARTS),
        ("tokens a second", _rate, ""),
        ("evaluations", lambda each: duration(each.evaluation), ""),
        ("time", lambda each: hours(each.hours), hours(one.hours)),
        *([money] if one.price else []),
    ]


def _part(name: str) -> Cells:
    value = attrgetter(name)
    return lambda each: f"{seconds(value(each.seconds))} ({value(each.seconds) / each.seconds.total:.1%})"


def _rate(each: Stage) -> str:
    return f"{each.work.sequence.tokens * each.work.batch / each.seconds.total:,.0f}"


def seconds(count: float) -> str:
    """Such as 14.12 s, 27 ms."""
    return f"{count:,.2f} s" if count >= 1 else f"{1000 * count:,.1f} ms"


def hours(count: float) -> str:
    """Such as 39.11 h, 14 min 3 s."""
    return f"{count:,.2f} h" if count >= 1 else duration(3600 * count)


def _count(number: float) -> str:
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if number >= factor:
            return f"{number / factor:.2f} {unit}"
    return f"{number:,.0f}"


def _memory(plan: Plan) -> list[str]:
    rows = [[f"  {name}", size(value)] for name, value in plan.memory.items() if value]
    total = f"{size(plan.needed)} of {size(plan.costs.capacity)}"
    fits = f"the largest micro-batch that fits has {plan.fitting:,} slots" if plan.fitting else "no micro-batch fits"
    return ["memory of a rank, at its peak", *aligned(rows, "lr"), f"  in all {total}; {fits}"]


def _hosts(plan: Plan) -> list[str]:
    whole, left = ([each for each in plan.many if bool(each.stages) == planned] for planned in (True, False))
    head = ["hosts", "ranks", "time", "speed-up", *(["money"] if plan.one.price else [])]
    lines = aligned([head, *(_host_cells(each, plan.one) for each in whole)], "r")
    if left:
        lines.append(f"on {left[0].hosts} hosts and more a step has fewer sequences than there are ranks")
    return lines


def _host_cells(each: OnHosts, one: OnHosts) -> Sequence[str]:
    speed = one.hours / each.hours
    cells = [str(each.hosts), f"{each.ranks:,}", hours(each.hours), f"{speed:.2f}x"]
    return [*cells, f"{each.money:,.2f}"] if each.price else cells
