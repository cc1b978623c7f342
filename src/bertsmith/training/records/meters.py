"""Training metrics, accumulated between log lines and written to `metrics.jsonl` and TensorBoard.

Nothing is read from the device until a line is due.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import as_json, disk_errors, read_errors, with_nan, write_text
from bertsmith.base.log import counted, warn
from bertsmith.base.ranks import sum_over_ranks, world_size
from bertsmith.training.objective import nothing
from bertsmith.training.records.appended import AppendedFile
from bertsmith.training.records.names import METRICS_FILE, fault_of
from bertsmith.training.records.sinks import Sink
from bertsmith.training.records.tensorboard import Board, numbers_of
from bertsmith.training.step import StepSums

_SHOWN = 4


class Meter:
    """Adds up steps, and turns what was added since the last reading into one record of means."""

    def __init__(self, device: torch.device, names: Sequence[str], peak: float | None = None) -> None:
        """names: of the losses of a step. peak: FLOP/s that the device reaches at best; None where that is unknown."""
        self._device, self._names, self._peak = device, tuple(names), peak
        self._reset(0.0)

    def _reset(self, waited: float) -> None:
        # Three figures of each loss, then tokens, places of attention, slots, floating-point operations.
        self._sums = torch.zeros(3 * len(self._names) + 4, device=self._device, dtype=torch.float64)
        self._norm = torch.zeros((), device=self._device)
        self._last = torch.zeros(3 * len(self._names), device=self._device)
        self._steps = 0
        self._sequences: int | None = 0  # None after a state that does not say
        self._start, self._waited_at_start = time.perf_counter(), waited

    def state(self, waited_seconds: float) -> list[float]:
        """What was added since the last reading, over all ranks, so that a resumed run's next record is the same.
        The last three are the steps (`Position.pending`), seconds, and seconds of waiting."""
        seconds, waited = time.perf_counter() - self._start, waited_seconds - self._waited_at_start
        sums = sum_over_ranks(self._sums.clone()).tolist()
        return [*sums, -1.0 if self._sequences is None else self._sequences, float(self._steps), seconds, waited]

    def restore(self, state: list[float]) -> None:
        """Takes a state back; on the first rank alone, because it is that of all."""
        *sums, steps, seconds, waited = state
        size = len(self._sums)
        # Earlier versions did not count operations, or sequences.
        *sums, sequences = sums if len(sums) > size else [*sums, *[0.0] * (size - len(sums)), -1.0]
        self._sums = torch.tensor(sums, device=self._device, dtype=torch.float64)
        self._sequences, self._steps = (int(sequences) if sequences >= 0 else None), int(steps)
        self._start, self._waited_at_start = time.perf_counter() - seconds, -waited

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A block whose time is not spent on training, and left out of the rates."""
        start = time.perf_counter()
        yield
        self._start += time.perf_counter() - start

    def add(self, sums: StepSums, gradient_norm: torch.Tensor, sequences: int = 0) -> None:
        """Counts one step of this rank. What overflowed fp16, in a step whose update was skipped, enters no mean.
        sequences: of the step over all ranks."""
        step = sums.figures.double()
        self._sums[:-4] += torch.where(torch.isfinite(step).all(), step, 0.0)
        self._sums[-4] += sums.tokens
        self._sums[-3] += sums.attention_places
        self._sums[-2] += sums.slots
        self._sums[-1] += sums.flop
        self._norm, self._last = gradient_norm, sums.figures
        self._steps += 1
        if self._sequences is not None:
            self._sequences += sequences

    def read(self, waited_seconds: float) -> dict[str, float]:
        """The record of the steps since the last reading, over all ranks. waited_seconds: for data, since the start.

        A single loss is "loss" with "accuracy" and "count"; of several, "loss" is their sum, and each has its own under
        its name. What nothing counted in has a count of 0, and neither loss nor accuracy; nor has a loss of numbers an
        accuracy (`LossSum`). "step_loss" and the gradient norm are those of the last step, and left out where they were
        not finite.
        """
        seconds = time.perf_counter() - self._start
        size = len(self._last)
        *figures, tokens, places, filled, flop = sum_over_ranks(torch.cat([self._last.double(), self._sums])).tolist()
        last = {"step_loss": self._means(figures[:size]).get("loss", math.nan), "gradient_norm": float(self._norm)}
        record = {
            **self._means(figures[size:]),
            **{name: value for name, value in last.items() if math.isfinite(value)},
            "steps": float(self._steps),
            **({} if self._sequences is None else {"sequences": float(self._sequences)}),
            "tokens": tokens,
            "tokens_per_second": tokens / seconds,
            "flop_per_second": flop / seconds,
            **({"peak_share": flop / seconds / self._peak / world_size()} if self._peak else {}),
            "seconds_per_step": seconds / max(self._steps, 1),
            "fill": tokens / max(filled, 1),
            "padding_share": 1 - tokens / max(places, 1),
            "data_wait_share": (waited_seconds - self._waited_at_start) / seconds,
            "memory_bytes": float(memory_bytes(self._device)),
        }
        self._reset(waited_seconds)
        return record

    def _means(self, figures: list[float]) -> dict[str, float]:
        each = list(zip(self._names, figures[0::3], figures[1::3], figures[2::3], strict=True))
        means = [loss / count for _, loss, count, _ in each if count]
        record = {"loss": sum(means)} if means else {}
        for name, loss, count, right in each:
            prefix = f"{name}_" if len(each) > 1 else ""
            if count:
                record[f"{prefix}loss"] = loss / count
                record |= {f"{prefix}accuracy": right / count} if right >= 0 else {}
            record[f"{prefix}count"] = count
        return record


def memory_bytes(device: torch.device) -> int:
    """The most memory used so far: by tensors on a CUDA device, else by this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


class MetricsFile:
    """`metrics.jsonl`, the source of truth of a run, a record a line; the same for TensorBoard where installed.

    In a `with` block. A disk that refuses a line stops no training: see `AppendedFile`. The end of the block raises
    BertsmithError where lines are still missing; where it ends by an error, it warns of them.
    """

    def __init__(
        self, folder: Path, first_step: int = 0, sinks: Sequence[Sink] = (), check: Callable[[], None] = nothing
    ) -> None:
        """first_step: the first one that this file will tell of. sinks: are given the records too, and are closed with
        this file. check: as of `AppendedFile`. Raises BertsmithError where the disk refuses."""
        self.path = folder / METRICS_FILE
        self._file, self._sinks = AppendedFile(self.path, check), sinks
        with disk_errors(self.path):
            self._board = Board.open(folder / "tensorboard", first_step, check)

    def write(self, record: dict[str, Any]) -> None:
        """Appends a record; it has `kind` and `step`."""
        self._file.write(f"{as_json(record)}\n".encode())
        if self._board is not None:
            self._board.write(record["step"], numbers_of(record))
        for sink in self._sinks:
            sink.write(record)

    def sync(self) -> None:
        """Puts what was written so far on the disk, before a checkpoint that builds on it. Raises BertsmithError."""
        self._file.sync()

    def close(self, failed: bool = False) -> None:
        """Puts everything on the disk. failed: an error ends the run. Raises BertsmithError where the disk refuses."""
        with ExitStack() as ends:
            for sink in self._sinks:
                ends.callback(sink.close, failed)
            if self._board is not None:
                ends.callback(self._board.close)
            ends.callback(self._file.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close(failed=error is not None)
        except BertsmithError as lost:
            if error is None:
                raise
            warn(f"the last lines of metrics were lost: {lost.what} ({lost.where})")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The whole records of a `metrics.jsonl`; a last line cut short by a crash is left out, and one that lacks no more
    than its end of line is not. Raises BertsmithError for another line that is no record."""
    if not path.exists():
        return []
    with read_errors(path):
        *lines, last = path.read_bytes().split(b"\n")
    records = list[dict[str, Any]]()
    for number, line in enumerate(lines, start=1):
        fix = "remove that line, or put the file back from a copy"
        try:
            found: Any = json.loads(line) if line else None
        except ValueError as error:
            raise BertsmithError(f"line {number} is not JSON ({error})", path, fix) from error
        fault = fault_of(found)
        if not fault:
            records.append(with_nan(found))
        elif line:
            raise BertsmithError(f"line {number} is no record: {fault}", path, fix)
    with suppress(ValueError):
        records += [with_nan(each) for each in [json.loads(last)] if not fault_of(each)]
    return records


def forget_after(path: Path, step: int, unmeasured: bool = False, pending: int = 0) -> int:
    """Drops the records of later steps, which will be taken again, so that no step stands twice in `metrics.jsonl`.

    unmeasured: the evaluation after the step itself will be done again, too. pending: steps up to it that no line tells
    of yet; others without a line, as where lines were deleted, are warned of. Returns the last step that had a record.
    """
    records = read_metrics(path)
    if path.exists():
        last = step - unmeasured
        kept = [
            each
            for each in records
            if each["step"] <= (last if each["kind"] == "evaluation" else step) and each["kind"] not in ("final", "end")
        ]
        write_text(path, "".join(f"{as_json(record)}\n" for record in kept))
        told, twice, lacking = 0, 0, list[str]()
        for each in (each for each in kept if each["kind"] == "train"):
            first = each["step"] - int(each.get("steps", each["step"] - told)) + 1
            if first > told + 1:
                lacking.append(f"{told + 1:,} to {first - 1:,}")
            twice += first <= told
            told = max(told, each["step"])
        if twice:
            warn(
                f"{path} has {counted(twice, 'line')} of steps that a line before tells of, so totals count these twice"
            )
        if lacking:
            more = f", and {len(lacking) - _SHOWN} other stretches" if len(lacking) > _SHOWN else ""
            lost = f"what was logged of steps {', '.join(lacking[:_SHOWN])}{more} is lost"
            warn(f"{path} lacks lines: {lost}, and totals of the run lack it")
        if told < step - pending:
            lost = f"what was logged of steps {told + 1:,} to {step - pending:,} is lost"
            warn(f"{path} ends before this checkpoint: {lost}, and totals of the run lack it")
    elif step > 0:
        warn(f"{path} is not there: what was logged up to step {step:,} is lost, and begins anew")
    return max((each["step"] for each in records), default=0)
