"""A plan as a picture: the memory of a rank by part, where the time of a step goes, and the hours on more hosts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertsmith.base.figures import INSTALL, new_figure, save_figure
from bertsmith.base.log import say
from bertsmith.training.planning.cost import PARTS
from bertsmith.training.planning.plan import OnHosts, Plan


def draw_plan(plan: Plan, path: Path) -> bool:
    """Writes the picture as PNG; says so, and gives False, where matplotlib is not installed."""
    figure = new_figure(13, 4.2)
    if figure is None:
        say(f"no picture: matplotlib is not installed ({INSTALL})")
        return False
    figure.suptitle(f"{plan.asked.title}: {plan.asked.ranks} x {plan.costs.name}, {plan.asked.precision}")
    memory, step, hosts = figure.subplots(1, 3)
    _draw_memory(memory, plan)
    whole = [each for each in plan.many if each.stages]
    _draw_step(step, whole)
    _draw_hosts(hosts, whole)
    save_figure(figure, path)
    return True


def _draw_memory(axes: Any, plan: Plan) -> None:
    parts = {name: value / 1e9 for name, value in plan.memory.items() if value > 0}
    axes.barh(list(parts), list(parts.values()), color="tab:blue")
    axes.invert_yaxis()
    axes.set_xlabel("GB")
    axes.set_title(f"memory of a rank: {plan.needed / 1e9:.1f} of {plan.costs.capacity / 1e9:.0f} GB")


def _draw_step(axes: Any, whole: Sequence[OnHosts]) -> None:
    names = [f"{each.hosts}" for each in whole]
    bottom = [0.0] * len(whole)
    for part in PARTS:
        heights = [
            100
            * sum(getattr(stage.seconds, part) * stage.work.steps for stage in each.stages)
            / sum(stage.seconds.total * stage.work.steps for stage in each.stages)
            for each in whole
        ]
        axes.bar(names, heights, bottom=bottom, label=part)
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    axes.set_xlabel("hosts")
    axes.set_ylabel("% of the steps' time")
    axes.set_title("where the time goes")
    axes.legend(loc="lower left")


def _draw_hosts(axes: Any, whole: Sequence[OnHosts]) -> None:
    counts = [each.hosts for each in whole]
    axes.set_title("hours")
    axes.set_xlabel("hosts")
    axes.plot(counts, [each.hours for each in whole], marker="o", label="planned")
    axes.plot(counts, [whole[0].hours / count for count in counts], linestyle=":", label="one host's, shared")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.legend()
