"""Orders of a corpus in memory whose epochs are made ahead, by processes that a test can hold up, end or have fail."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bertsmith.batches.epochs import Epochs
from bertsmith.batches.order import Order
from bertsmith.batches.shares import Share
from bertsmith.corpus.shards import Shard
from made_shards import MemorySource, make_source

BATCH, STEPS, LENGTH = 48, 20, 64
PATIENCE = 120


@dataclass
class AwaySource(MemorySource):
    """Does something else in other processes than its own. away: "wait" for the file `gate`, "end", or "fail"."""

    home: int = 0
    away: str = ""
    gate: str = ""

    def open_shard(self, split: str, index: int) -> Shard:
        if os.getpid() != self.home:
            Path(f"{self.gate}-reached").touch()
            while self.away == "wait" and not Path(self.gate).exists():
                time.sleep(0.01)
            if self.away == "end":
                os._exit(3)
            if self.away == "fail":
                raise ZeroDivisionError("a bug of ours")
        return super().open_shard(split, index)


def away(tmp_path: Path, what: str) -> AwaySource:
    return AwaySource(make_source().splits, home=os.getpid(), away=what, gate=str(tmp_path / "gate"))


def order(folder: Path | None, source: MemorySource | None = None, share: Share | None = None) -> Order:
    made = Order(Epochs(source or make_source(), seed=9, phase=1, sequence_length=LENGTH, cache_folder=folder))
    if share:
        made.build_ahead(share, end=STEPS * BATCH)
    return made


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "waited for too long"
        time.sleep(0.01)


def only_child() -> int:
    (child,) = multiprocessing.active_children()
    return child.pid or 0
