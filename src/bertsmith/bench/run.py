"""From the flags of `bertsmith bench` to a report."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.bench.batches import BatchesBench, bench_batches
from bertsmith.bench.prepare import PEERS, PrepareBench, bench_prepare
from bertsmith.bench.table import Report

NAMES = ("prepare", "batches")
_SIZES_MB, _QUICK_SIZES_MB = (10.0, 40.0, 160.0), (0.5, 1.0, 2.0)


@dataclass(frozen=True)
class BenchOptions:
    """What may be said about a bench. The string under a field is its help on the command line."""

    source: tuple[str, ...] = ()
    """Text, as `prepare` takes it. Without it, the Wikipedia in $BERTSMITH_DATA, else Python's documentation."""
    tokenizer: Path | None = None
    """The vocabulary of all sides. Without it, that of bert-base-uncased in $BERTSMITH_DATA, else one is trained."""
    corpus: Path | None = None
    """For batches: a prepared corpus; without it, the largest text is prepared first."""
    sizes: tuple[float, ...] = ()
    """Megabytes of text, rising; 10 40 160 where none are given. Slow sides get a twentieth."""
    lengths: tuple[int, ...] = (128, 512)
    """For batches: the sequence lengths."""
    against: tuple[str, ...] = PEERS
    """Whom to compare with; none where nothing follows. Batches know datasets alone."""
    workers: int | None = None
    """Worker processes of our preparation; all cores where none is given."""
    quick: bool = False
    """Small texts: ends in about a minute, and says little about speed."""

    def sizes_bytes(self) -> tuple[int, ...]:
        """The sizes of the texts, in bytes."""
        return tuple(round(each * 1e6) for each in self.sizes or (_QUICK_SIZES_MB if self.quick else _SIZES_MB))


def run_bench(name: str, options: BenchOptions, command: Sequence[str]) -> Report:
    """Measures what `name` says, in a folder that is deleted again. command: as it was typed, for the report.

    Raises BertsmithError for a name that is not known, for a system without what is needed to measure, and as
    `bench_prepare` and `bench_batches` do.
    """
    if name not in NAMES:
        raise BertsmithError(f"there is no bench '{name}'", "bench", nearest(name, NAMES))
    if sys.platform == "win32":
        raise BertsmithError("processor time of all processes is not to be had on Windows", "bench", "use Linux or WSL")
    sizes, typed = options.sizes_bytes(), shlex.join(command)
    with tempfile.TemporaryDirectory(prefix="bertsmith-bench-") as made:
        folder = Path(made)
        if name == "prepare":
            return bench_prepare(
                PrepareBench(options.source, sizes, options.tokenizer, options.workers, options.against), folder, typed
            )
        asked = BatchesBench(options.corpus, options.source, max(sizes), options.tokenizer, options.workers)
        asked = replace(asked, lengths=options.lengths, against_datasets="datasets" in options.against)
        return bench_batches(asked, folder, typed)
