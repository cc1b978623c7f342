"""A profile of a few steps of a run: a trace that browsers show, and the operations that cost most."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import whole_folder
from bertsmith.base.log import counted, say, warn
from bertsmith.base.tables import aligned

WARM_UP = 3
"""Steps of a session that are taken before those that are profiled: in the first, memory grows and compilers run."""
SHOWN = 10
FOLDER, TRACE_FILE, TABLE_FILE = "profile", "trace.json.gz", "operations.txt"


class Trace:
    """Profiles steps `WARM_UP` + 1 to `WARM_UP` + `steps` of a session, with what is between them, such as an
    evaluation or a copy for a checkpoint. A disk that refuses it ends no run."""

    def __init__(self, run: Path, steps: int, device: torch.device) -> None:
        self._folder, self._steps, self._device = run / FOLDER, steps, device
        self._taken, self._first, self._last = 0, 0, 0
        self._profiler: profile | None = None

    def advance(self, step: int) -> None:
        """Called after each step. step: its number in the run, from 1."""
        self._taken, self._last = self._taken + 1, step
        if self._taken == WARM_UP:
            self._begin(step + 1)
        elif self._taken == WARM_UP + self._steps:
            self._end()

    def close(self) -> None:
        """Ends a profile that has fewer steps than it was to have, because the run ends."""
        if self._taken <= WARM_UP:
            warn(f"nothing was profiled: the run took {counted(self._taken, 'step')}, and {WARM_UP} are left out first")
            if self._profiler is not None:
                self._profiler.stop()
        elif self._profiler is not None:
            self._end()

    def _begin(self, first: int) -> None:
        # The profiler's library would write lines of its own among ours.
        os.environ.setdefault("KINETO_LOG_LEVEL", "99")
        self._wait()
        cuda = [ProfilerActivity.CUDA] if self._device.type == "cuda" else []
        self._profiler, self._first = profile(activities=[ProfilerActivity.CPU, *cuda]), first
        self._profiler.start()

    def _end(self) -> None:
        profiler, self._profiler = self._profiler, None
        assert profiler is not None
        self._wait()
        profiler.stop()
        table = costliest(profiler.key_averages(), self._device.type == "cuda")
        steps = f"step {self._first:,}" if self._first == self._last else f"steps {self._first:,} to {self._last:,}"
        try:
            with whole_folder(self._folder) as aside:
                profiler.export_chrome_trace(str(aside / TRACE_FILE))
                (aside / TABLE_FILE).write_text("\n".join(table) + "\n", encoding="utf-8")
        except (OSError, BertsmithError) as error:
            reason = error.what if isinstance(error, BertsmithError) else error
            warn(f"the profile of {steps} could not be written to {self._folder}: {reason}")
        else:
            where = self._folder / TRACE_FILE
            say(f"profile of {steps}: {where} (open it in ui.perfetto.dev); what cost most:")
        for line in table:
            say(f"  {line}")

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def costliest(averages: Any, on_gpu: bool) -> list[str]:
    """A table of the operations with the most time of their own, without what they call: on a GPU that of kernels."""
    timed = [(each.self_device_time_total if on_gpu else each.self_cpu_time_total, each) for each in averages]
    total = sum(spent for spent, _ in timed) or 1
    rows = [["operation", "calls", "ms", "share"]]
    for spent, each in sorted(timed, key=lambda pair: -pair[0])[:SHOWN]:
        rows.append([each.key[:60], f"{each.count:,}", f"{spent / 1000:,.1f}", f"{spent / total:.1%}"])
    return aligned(rows)
