"""What int8 costs: the task's metric on the user's own rows, in fp32 and in int8, by the engine that will run both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.registry import read_task
from bertsmith.tasks.task import Task
from bertsmith.weights.huggingface import TASK_FILE

MAX_LOSS = 0.01


@dataclass(frozen=True)
class Int8Loss:
    """metric: the task's. rows: it was measured on. fp32, int8: its value."""

    metric: str
    rows: int
    fp32: float
    int8: float

    @property
    def share(self) -> float:
        """By what share of its value in fp32, above 0, the metric has fallen; below 0 where it has risen."""
        return (self.fp32 - self.int8) / self.fp32


def check_enough(rows: int, max_loss: float, data: Path) -> None:
    """Raises BertsmithError for so few rows that one wrong answer more costs above `max_loss` of a perfect metric; with
    0 none is allowed to change for the worse, however many there are."""
    if 0 < rows * max_loss < 1:
        needed = math.ceil(1 / max_loss)
        what = f"a loss of {max_loss:g} cannot be measured on {rows:,} rows: one answer is {1 / rows:.2%} of them"
        raise BertsmithError(what, data, f"give {needed:,} rows or more, or allow more with --max-loss")


def measured_loss(
    folder: Path, backend: str, data: Path, max_loss: float, columns: Mapping[str, Any] | None = None
) -> Int8Loss:
    """Measures an exported folder that has both graphs, and says both figures.

    Raises BertsmithError where the metric falls by more than `max_loss` of its value in fp32, or is not above 0 there,
    for rows that cannot be used, and for a model without a metric.
    """
    figures = {}
    for precision in ("fp32", "int8"):
        predictor = Predictor(folder, backend=backend, precision=precision, columns=columns)
        examples = predictor.examples(data)
        figures[precision] = predictor.evaluate(examples)
    metric = read_task(folder / TASK_FILE).values.get("metric")
    kind = predictor.reader
    assert issubclass(kind, Task)  # `examples` has refused any other
    if metric not in figures["fp32"]:
        metric = next(each for each in kind.metrics if each in figures["fp32"])
    found = Int8Loss(metric, len(examples.records), figures["fp32"][metric], figures["int8"][metric])
    told = f"{metric} of {found.rows:,} rows: {found.fp32:.4f} in fp32, {found.int8:.4f} in int8"
    say(told)
    if not found.fp32 > 0:
        fix = "measure on rows that the model answers better than by chance; nothing was written"
        raise BertsmithError(f"{told}: the metric says nothing on these rows", data, fix)
    if not found.share <= max_loss:
        what = f"{told}: a fall by {found.share:.2%} of its value, and --max-loss allows {max_loss:.2%}"
        fix = "leave out --int8, measure on more rows, or allow more with --max-loss; nothing was written"
        raise BertsmithError(what, data, fix)
    return found
