"""What a trainer watches, gathered between log lines and written to `metrics.jsonl` and TensorBoard.

Nothing is read from the device until a line is due.
"""

from __future__ import annotations

import json
import math
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bertsmith.base.files import disk_errors, write_text
from bertsmith.base.ranks import sum_over_ranks
from bertsmith.training.board import Board
from bertsmith.training.step import StepSums


class Meter:
    """Adds up steps, and turns what was added since the last reading into one record of means."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._reset(0.0)

    def _reset(self, waited: float) -> None:
        # The six figures of steps, tokens, places of attention, slots.
        self._sums = torch.zeros(9, device=self._device, dtype=torch.float64)
        self._norm = torch.zeros((), device=self._device)
        self._steps = 0
        self._start, self._waited_at_start = time.perf_counter(), waited

    def state(self, waited_seconds: float) -> list[float]:
        """What was added since the last reading, over all ranks, so that a resumed run's next record is the same."""
        seconds, waited = time.perf_counter() - self._start, waited_seconds - self._waited_at_start
        return [*sum_over_ranks(self._sums.clone()).tolist(), float(self._steps), seconds, waited]

    def restore(self, state: list[float]) -> None:
        """Takes a state back; on the first rank alone, because it is that of all."""
        *sums, steps, seconds, waited = state
        self._sums = torch.tensor(sums, device=self._device, dtype=torch.float64)
        self._steps = int(steps)
        self._start, self._waited_at_start = time.perf_counter() - seconds, -waited

    def pause(self, seconds: float) -> None:
        """Leaves time that was not spent on training out of the rates."""
        self._start += seconds

    def add(self, sums: StepSums, gradient_norm: torch.Tensor) -> None:
        """Counts one step of this rank. What overflowed fp16, in a step whose update was skipped, enters no mean."""
        step = sums.figures.double()
        self._sums[:6] += torch.where(torch.isfinite(step).all(), step, 0.0)
        self._sums[6] += sums.tokens
        self._sums[7] += sums.attention_places
        self._sums[8] += sums.slots
        self._norm = gradient_norm
        self._steps += 1

    def read(self, waited_seconds: float) -> dict[str, float]:
        """The record of the steps since the last reading, over all ranks. waited_seconds: for data, since the start.

        The gradient norm is the last step's, and left out where it was not finite.
        """
        seconds = time.perf_counter() - self._start
        masked, count, right, pair_loss, pairs, pair_right, *slots = sum_over_ranks(self._sums).tolist()
        tokens, places, filled = slots
        norm = float(self._norm)
        masked_loss, pair_mean = masked / max(count, 1), pair_loss / max(pairs, 1)
        record = {
            "loss": masked_loss + pair_mean,
            "masked_loss": masked_loss,
            "next_sentence_loss": pair_mean,
            "masked_accuracy": right / max(count, 1),
            "next_sentence_accuracy": pair_right / max(pairs, 1),
            **({"gradient_norm": norm} if math.isfinite(norm) else {}),
            "steps": float(self._steps),
            "tokens": tokens,
            "tokens_per_second": tokens / seconds,
            "seconds_per_step": seconds / max(self._steps, 1),
            "fill": tokens / max(filled, 1),
            "padding_share": 1 - tokens / max(places, 1),
            "data_wait_share": (waited_seconds - self._waited_at_start) / seconds,
            "memory_bytes": float(memory_bytes(self._device)),
        }
        self._reset(waited_seconds)
        return record


def memory_bytes(device: torch.device) -> int:
    """The most memory used so far: by tensors on a CUDA device, else by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class MetricsFile:
    """`metrics.jsonl`, the source of truth of a run, a record a line; the same for TensorBoard where installed.

    Raises BertsmithError where the disk refuses.
    """

    def __init__(self, folder: Path, first_step: int = 0) -> None:
        """first_step: the first one that this file will tell of."""
        self._path = folder / "metrics.jsonl"
        with disk_errors(self._path):
            self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115  open as long as the run
            self._board = Board.open(folder / "tensorboard", first_step)

    def write(self, record: dict[str, Any]) -> None:
        """Appends a record; it has `kind` and `step`."""
        with disk_errors(self._path):
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()
            if self._board is not None:
                numbers = {name: value for name, value in record.items() if isinstance(value, float)}
                self._board.write(record["step"], {f"{record['kind']}/{name}": each for name, each in numbers.items()})

    def close(self) -> None:
        """Puts everything on the disk."""
        with disk_errors(self._path):
            try:
                if self._board is not None:
                    self._board.close()
                self._file.flush()
                os.fsync(self._file.fileno())
            finally:
                self._file.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The whole records of a `metrics.jsonl`; a last line cut short by a crash is left out."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def forget_after(path: Path, step: int) -> None:
    """Drops the records of later steps, which will be taken again, so that no step stands twice in `metrics.jsonl`."""
    if path.exists():
        known = [record for record in read_metrics(path) if record["step"] <= step]
        kept = [record for record in known if record["kind"] not in ("final", "end")]
        write_text(path, "".join(json.dumps(record) + "\n" for record in kept))
