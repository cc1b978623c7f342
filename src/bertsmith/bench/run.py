"""From the flags of `bertsmith bench` to a report."""

from __future__ import annotations

import importlib
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.log import warn
from bertsmith.base.stopping import StoppedAfterSaving, interrupt_waits, stop_on_signals
from bertsmith.bench.machine import machine
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.table import Report

NAMES = ("prepare", "batches", "pretrain-step", "finetune", "predict", "serve", "reference", "scaling")


def run_bench(name: str, options: BenchOptions, command: Sequence[str]) -> Report:
    """Runs bench `name` in a folder that is deleted afterwards. command: as it was typed, for the report.

    Raises BertsmithError for an unknown name, for a device that it does not measure, on Windows, and as the bench's own
    function does (`bench_prepare` of `bench/prepare/bench.py` and so on); StoppedAfterSaving at a signal.
    """
    if name not in NAMES:
        raise BertsmithError(f"there is no bench '{name}'", "bench", nearest(name, NAMES))
    if sys.platform == "win32":
        what = "Windows does not give the processor time of a process with its children"
        raise BertsmithError(what, "bench", "use Linux or WSL")
    options.check_device(name)
    for line in options.without_effect(name):
        warn(line)
    with interrupt_waits():
        bench = _bench(name)
    with stop_on_signals("the bench deletes what it wrote, and stops", at_once=True) as stop:
        try:
            with tempfile.TemporaryDirectory(prefix="bertsmith-bench-") as folder:
                before = machine()
                found = bench(options, Path(folder))
                return replace(found, command=shlex.join(command), machine=before | found.machine)
        except KeyboardInterrupt:
            raise StoppedAfterSaving("the bench has stopped", stop.interrupted) from None


def _bench(name: str) -> Callable[[BenchOptions, Path], Report]:
    """Imported here, because most import torch."""
    room = "step" if name == "pretrain-step" else name
    try:
        module = importlib.import_module(f"bertsmith.bench.{room}.bench")
    except ModuleNotFoundError as error:
        if name != "serve":
            raise
        what = f"a server needs {error.name}, which is not installed"
        raise BertsmithError(what, "bench serve", "pip install 'bertsmith[serve]'") from error
    bench: Callable[[BenchOptions, Path], Report] = getattr(module, f"bench_{name.replace('-', '_')}")
    return bench
