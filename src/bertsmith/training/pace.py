"""A stage that is driven by time: how far it has come, and how many steps it will have."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field

_UNKNOWN = 1_000_000


@dataclass(frozen=True)
class Plan:
    """What a look at the clock came to.

    began: seconds of the run at which the stage began. first_seconds, first_step: of the first look, before which a
    step may have been compiled. step, progress: where the stage stood at the last look, in steps and as a share of its
    time. steps: that the stage will have.
    """

    began: float
    first_seconds: float
    first_step: float
    step: float
    progress: float
    steps: float


@dataclass
class Pace:
    """The steps of a stage that ends when the run is `until` seconds old.

    It looks at the clock at lines of the log alone, and what it plans holds until the next one. So ranks with the same
    clock do the same, and a resumed run takes the steps up to the next line as it took them before.
    """

    until: float
    plan: Plan = field(init=False)

    def begin(self, now: float, state: Sequence[float] = ()) -> None:
        """Begins the stage, or continues from the `state` of a checkpoint. now: seconds of the run."""
        # Before the second look steps are taken at the beginning of a long schedule, with next to no rate.
        self.plan = Plan(*state) if state else Plan(now, 0.0, 0.0, 0.0, 0.0, float(_UNKNOWN))

    def look(self, step: int, now: float) -> None:
        """Plans how many steps are left by how long those took that were taken. step: done of the stage, at least 1."""
        plan, left = self.plan, max(self.until - now, 0.0)
        if not plan.first_step:
            # The first steps may have waited for a compiler, so how long they took says nothing of those to come.
            self.plan = Plan(plan.began, now, float(step), float(step), 0.0, float(_UNKNOWN if left else step))
            return
        seconds_per_step = (now - plan.first_seconds) / (step - plan.first_step)
        steps = step + math.floor(left / max(seconds_per_step, 1e-6))
        gone = plan.first_step / steps
        progress = gone + (1 - gone) * (1 - left / max(self.until - plan.first_seconds, left, 1e-6))
        self.plan = Plan(plan.began, plan.first_seconds, plan.first_step, float(step), progress, float(steps))

    def looks_after(self, step: int) -> bool:
        """Whether a line is due early, after this many steps: the first plan is a guess."""
        return step & (step - 1) == 0

    @property
    def steps(self) -> int:
        """How many steps the stage has, by the present plan."""
        return int(self.plan.steps)

    def update(self, number: int) -> float:
        """Where in a schedule of `steps` updates the update `number` of the stage stands, from 1."""
        plan = self.plan
        left = max(plan.steps - plan.step, 1.0)
        progress = plan.progress + (1 - plan.progress) * (number - 1 - plan.step) / left
        return 1 + progress * plan.steps

    def state(self) -> list[float]:
        """For a checkpoint."""
        return list(astuple(self.plan))
