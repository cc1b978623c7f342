"""What is measured: a task, trained or run, over batches of sequences of one length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

TaskName = Literal["pre-training", "SQuAD", "GLUE"]
Mode = Literal["training", "inference"]
LENGTHS: dict[TaskName, tuple[int, ...]] = {"pre-training": (128, 512), "SQuAD": (384,), "GLUE": (128,)}
"""Those of NVIDIA's recipes."""
_CPU_TOKENS, _GPU_TOKENS = 2048, 16_384
"""Of a training step."""
_CPU_CALLS, _GPU_CALLS = (1, 8), (1, 8, 64)
"""Sequences of a call."""


@dataclass(frozen=True)
class Case:
    """batch: sequences of a step or a call. precision: fp32, tf32 or bf16."""

    task: TaskName
    mode: Mode
    batch: int
    length: int
    precision: str

    @property
    def name(self) -> str:
        """Such as "SQuAD training, 5 x 384, bf16"."""
        return f"{self.task} {self.mode}, {self.batch} x {self.length}, {self.precision}"


def cases_of(precisions: Sequence[str], is_cpu: bool) -> list[Case]:
    """Training in the order of a model's life, then inference."""
    tokens, calls = (_CPU_TOKENS, _CPU_CALLS) if is_cpu else (_GPU_TOKENS, _GPU_CALLS)
    shapes = [(task, length) for task, lengths in LENGTHS.items() for length in lengths]
    found = [Case(task, "training", max(1, tokens // n), n, each) for task, n in shapes for each in precisions]
    found += [Case(task, "inference", batch, n, each) for task, n in shapes for batch in calls for each in precisions]
    return found
