"""What all stages of a fine-tuning run share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bertsmith.model.config import BertConfig
from bertsmith.model.distillation.layers import evenly_spaced, layer_pairs
from bertsmith.tasks.distilling.objective import loss_counts
from bertsmith.tasks.objective import Counted, label_counts
from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.settings import DistillSettings, FinetuneSettings
from bertsmith.tasks.task import Examples, Task
from bertsmith.tokens.tokenizer import Tokenizer
from bertsmith.weights.huggingface import read_config


@dataclass(frozen=True)
class Distilled:
    """teacher: the folder of a model of the same task. shape: of a student with random weights; None for one that
    starts from a folder. as_teacher: the student starts as the teacher, or layers of it, with its head."""

    teacher: Path
    settings: DistillSettings
    shape: BertConfig | None = None
    as_teacher: bool = False


@dataclass(frozen=True)
class Work:
    """folder: the model's that is fine-tuned. parts: the rows, as "train", "dev" and perhaps others.
    benchmark: its name, if the run is of one. distilled: where the model learns from a teacher too."""

    folder: Path
    task: Task
    tokenizer: Tokenizer
    settings: FinetuneSettings
    max_length: int
    parts: dict[str, Examples]
    benchmark: str | None = None
    distilled: Distilled | None = None

    @property
    def config(self) -> BertConfig:
        """The shape of the model."""
        if self.distilled is not None and self.distilled.shape is not None:
            return self.distilled.shape
        return read_config(self.folder)

    @property
    def starts_random(self) -> bool:
        """Whether the encoder has random weights at first, not those of a folder."""
        return self.settings.from_scratch or (self.distilled is not None and self.distilled.shape is not None)

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers of the folder's model that are taken, numbered from 1."""
        count = self.config.num_hidden_layers
        return evenly_spaced((self.distilled and self.distilled.settings.student_layers) or count, count)

    @property
    def layer_pairs(self) -> tuple[tuple[int, int], ...]:
        """Which of these learn from which of the teacher: as of `layer_pairs`; none without a teacher."""
        if self.distilled is None:
            return ()
        of_teacher = read_config(self.distilled.teacher).num_hidden_layers
        return layer_pairs(self.distilled.settings.layer_map, len(self.layers), of_teacher)

    @property
    def counted(self) -> Counted:
        """What the losses of some units are divided by."""
        return label_counts if self.distilled is None else partial(loss_counts, settings=self.distilled.settings)

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
