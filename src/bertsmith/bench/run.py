"""From the flags of `bertsmith bench` to a report."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.log import warn
from bertsmith.bench.batches.bench import bench_batches
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.prepare.bench import bench_prepare
from bertsmith.bench.table import Report

NAMES = ("prepare", "batches", "pretrain-step", "finetune", "predict", "serve", "scaling")


def run_bench(name: str, options: BenchOptions, command: Sequence[str]) -> Report:
    """Runs bench `name` in a folder that is deleted afterwards. command: as it was typed, for the report.

    Raises BertsmithError for an unknown name, on Windows, and as `bench_prepare`, `bench_batches`,
    `bench_pretrain_step`, `bench_finetune`, `bench_predict`, `bench_serve` and `bench_scaling` do.
    """
    if name not in NAMES:
        raise BertsmithError(f"there is no bench '{name}'", "bench", nearest(name, NAMES))
    if sys.platform == "win32":
        what = "Windows does not give the processor time of a process with its children"
        raise BertsmithError(what, "bench", "use Linux or WSL")
    for line in options.without_effect(name):
        warn(line)
    with tempfile.TemporaryDirectory(prefix="bertsmith-bench-") as folder:
        return _bench(name)(options, Path(folder), shlex.join(command))


def _bench(name: str) -> Callable[[BenchOptions, Path, str], Report]:
    if name == "pretrain-step":
        from bertsmith.bench.step.bench import bench_pretrain_step  # here, because it imports torch

        return bench_pretrain_step
    if name == "finetune":
        from bertsmith.bench.finetune.bench import bench_finetune

        return bench_finetune
    if name == "predict":
        from bertsmith.bench.predict.bench import bench_predict

        return bench_predict
    if name == "serve":
        try:
            from bertsmith.bench.serve.bench import bench_serve
        except ModuleNotFoundError as error:
            what = f"a server needs {error.name}, which is not installed"
            raise BertsmithError(what, "bench serve", "pip install 'bertsmith[serve]'") from error
        return bench_serve
    if name == "scaling":
        from bertsmith.bench.scaling.bench import bench_scaling

        return bench_scaling
    return bench_prepare if name == "prepare" else bench_batches
