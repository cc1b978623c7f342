"""The metrics of a finished model on labelled rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertsmith.base.log import say
from bertsmith.inference.predictor import Predictor
from bertsmith.tasks.reading.bad_rows import SkippedRows
from bertsmith.tasks.reading.records import Columns, Source
from bertsmith.tasks.sequences import Truncated


@dataclass(frozen=True)
class Evaluated:
    """task: the model's. rows: measured. truncated: how much of them the model did not read. figures: every metric."""

    task: str
    rows: int
    truncated: Truncated
    figures: dict[str, float]


def evaluate(
    model: str | Path | Predictor,
    data: Source,
    *,
    report: Path | None = None,
    device: str = "auto",
    precision: str = "auto",
    columns: Columns | Mapping[str, Any] | None = None,
    skipped: SkippedRows | None = None,
) -> Evaluated:
    """Every metric of a fine-tuned model, or of a run's, on labelled rows.

    data: a file, or a list of rows. report: a folder for what the task has to tell of them. columns: as of `Predictor`.
    skipped: is given rows that cannot be used; without it they raise BertsmithError, as a label that the model does
    not know does.
    """
    predictor = (
        model if isinstance(model, Predictor) else Predictor(model, device, precision=precision, columns=columns)
    )
    examples = predictor.examples(data, skipped)
    sequences = examples.sequences
    say(f"{len(examples.records):,} rows, {sequences.truncation()}")
    examples.warn_of_empty()
    return Evaluated(predictor.kind, len(examples.records), sequences.truncated, predictor.evaluate(examples, report))
