"""The curves of a run, from the records of `metrics.jsonl`, and fewer points of them that look the same."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.tasks.results import TEST
from bertsmith.training.records.names import PLACE, STAGES

Floats = NDArray[np.float64]

TRAINING, HELD_OUT, TEST_ROWS = "training", "held out", "test"
PHASE = "phase"
# What a coordinate of a curve can be; more is no figure that anybody would want to see drawn.
_LARGEST = 1e100


def stage_of(record: Mapping[str, Any]) -> tuple[str, Any]:
    """The stage of a record, such as ("phase", 1) or ("seed", 42); ("", "") where it is of none."""
    return next(((kind, record[kind]) for kind in STAGES if kind in record), ("", ""))


@dataclass
class Curve:
    """The points of a figure, in the order of the records."""

    steps: array[float] = field(default_factory=lambda: array("d"))
    values: array[float] = field(default_factory=lambda: array("d"))


@dataclass
class Totals:
    """What a run's lines of training add up to. share_seconds: of the device's peak, times seconds."""

    tokens: float = 0.0
    seconds: float = 0.0
    waited_seconds: float = 0.0
    share_seconds: float = 0.0
    memory_bytes: float = 0.0
    lines: int = 0

    def add(self, record: Mapping[str, Any]) -> None:
        seconds = record.get("steps", 0.0) * record.get("seconds_per_step", 0.0)
        self.lines += 1
        self.tokens += record.get("tokens", 0.0)
        self.seconds += seconds
        self.waited_seconds += record.get("data_wait_share", 0.0) * seconds
        self.share_seconds += record.get("peak_share", 0.0) * seconds
        self.memory_bytes = max(self.memory_bytes, record.get("memory_bytes", 0.0))


@dataclass
class Curves:
    """All figures of a run. of: by (figure, source, stage), the stage "" for phases, which follow one another, else
    such as "seed 42". undrawn: values that are not finite, or too large to be drawn. phases: the first step that was
    logged of each phase."""

    of: dict[tuple[str, str, str], Curve] = field(default_factory=dict)
    undrawn: int = 0
    phases: dict[Any, int] = field(default_factory=dict)
    totals: Totals = field(default_factory=Totals)

    def add(self, record: Mapping[str, Any]) -> None:
        """A record of training or of an evaluation."""
        kind, label = stage_of(record)
        phased = kind in ("", PHASE)
        stage = "" if phased else f"{kind} {label}"
        step = record["step"] if phased else record.get(f"{kind}_step", record["step"])
        training = record["kind"] == "train"
        if training:
            self.totals.add(record)
        if kind == PHASE:
            self.phases.setdefault(label, step)
        for name, value in record.items():
            if isinstance(value, float) and name not in PLACE:
                source = TRAINING if training else TEST_ROWS if name.startswith(TEST) else HELD_OUT
                self._put((name.removeprefix(TEST), source, stage), step, value)

    def _put(self, key: tuple[str, str, str], step: float, value: float) -> None:
        if not abs(value) <= _LARGEST:  # nor is NaN
            self.undrawn += 1
            return
        curve = self.of.get(key)
        if curve is None:
            curve = self.of[key] = Curve()
        curve.steps.append(step)
        curve.values.append(value)

    def names(self, *sources: str) -> list[str]:
        """The figures that have a curve of one of these sources, in the order in which they came."""
        return list(dict.fromkeys(name for name, source, _ in self.of if source in sources))

    @property
    def stages(self) -> list[str]:
        """Those that curves are drawn of: seeds where there are any, which folds and shares of rows come before."""
        every = list(dict.fromkeys(stage for *_, stage in self.of))
        return [stage for stage in every if stage.startswith("seed")] or every

    @property
    def undrawn_stages(self) -> list[str]:
        """Those that are in tables only."""
        return [stage for stage in dict.fromkeys(stage for *_, stage in self.of) if stage not in self.stages]


def thinned(steps: Floats, values: Floats, most: int) -> tuple[Floats, Floats]:
    """At most so many points (4 or more) of a curve: the first, the last, and of each of equal stretches between them
    the lowest and the highest, so that no peak is lost."""
    if len(steps) <= most:
        return steps, values
    last, stretches = len(steps) - 1, (most - 2) // 2
    width, wider = divmod(last - 1, stretches)
    kept = [np.array([0, last])]
    for first, count, size in ((1, wider, width + 1), (1 + wider * (width + 1), stretches - wider, width)):
        starts, inside = first + size * np.arange(count), values[first : first + count * size].reshape(count, size)
        kept += [starts + inside.argmin(1), starts + inside.argmax(1)]
    chosen = np.unique(np.concatenate(kept))
    return steps[chosen], values[chosen]
