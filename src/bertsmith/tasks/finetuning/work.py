"""What all stages of a fine-tuning run share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.settings import FinetuneSettings
from bertsmith.tasks.task import Examples, Task
from bertsmith.tokens.tokenizer import Tokenizer


@dataclass(frozen=True)
class Work:
    """folder: the model's that is fine-tuned. parts: the rows, as "train", "dev" and perhaps others.
    benchmark: its name, if the run is of one."""

    folder: Path
    task: Task
    tokenizer: Tokenizer
    settings: FinetuneSettings
    max_length: int
    parts: dict[str, Examples]
    benchmark: str | None = None

    @property
    def metric(self) -> str:
        """What selects the best weights."""
        return self.task.selecting(self.settings)

    @property
    def held_out(self) -> dict[str, Examples]:
        """The rows that are measured."""
        return {part: rows for part, rows in self.parts.items() if part != "train"}

    def examples(self, records: Sequence[Record]) -> Examples:
        """Some of the labelled records by themselves, encoded."""
        return self.task.examples(records, self.tokenizer, self.max_length)
