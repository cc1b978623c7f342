"""What int8 costs: the task's metric on the user's own rows, in fp32 and in int8, by the engine that will run both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say
from bertsmith.inference.predictor import Predictor, read_task
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
        """By what share of its value in fp32 the metric has fallen; below 0 where it has risen."""
        fall = self.fp32 - self.int8
        return fall / abs(self.fp32) if self.fp32 else float(fall > 0)


def measured_loss(
    folder: Path, backend: str, data: Path, max_loss: float, columns: Mapping[str, Any] | None = None
) -> Int8Loss:
    """Measures an exported folder that has both graphs, and says both figures.

    Raises BertsmithError where the metric falls by more than `max_loss` of its value in fp32, for rows that cannot be
    used, and for a model without a metric.
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
    if not found.share <= max_loss:
        what = f"{told}: a fall by {found.share:.2%} of its value, and --max-loss allows {max_loss:.2%}"
        fix = "leave out --int8, measure on more rows, or allow more with --max-loss; nothing was written"
        raise BertsmithError(what, data, fix)
    return found
