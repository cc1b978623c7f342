"""The order of a phase: which instance is at which position of the run. Epochs follow one another without a gap."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from typing import Any

from bertsmith.batches.ahead import Ahead
from bertsmith.batches.epoch_index import EpochIndex, References
from bertsmith.batches.epochs import Epochs
from bertsmith.batches.shares import Share


class Order:
    """The instances of one phase, by their position in the run, from 0.

    Memory: two epoch indices (two bytes per instance, memory-mapped if cached) with two windows of references each (32
    bytes per instance), and what `Epochs` holds.
    """

    def __init__(self, epochs: Epochs) -> None:
        self.epochs = epochs
        self.ahead: Ahead | None = None
        self._lock = threading.RLock()
        self._starts = [0]
        self._started: set[int] = set()
        self._indices: OrderedDict[int, EpochIndex] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the epochs only, without what is held in memory or built ahead."""
        return Order, (self.epochs,)

    def build_ahead(self, share: Share, end: int) -> None:
        """Makes epochs together with other ranks, each of them ahead of its use, until `close`.

        share: this rank's, of what is kept in `cache_folder`. end: the position at which training ends.
        """
        if self.epochs.files is not None:
            self.ahead = Ahead(self.epochs, self.epochs.files, share, end)

    def stop_waiting(self) -> None:
        """Before `close`: a thread that waits for the index of an epoch, or builds a step, fails and does not go on."""
        self.epochs.closing.set()

    def close(self, finished: bool = False) -> None:
        """Builds nothing ahead any more. finished: whether no instance is needed any more."""
        if self.ahead is not None:
            self.ahead.close(finished)
        self.epochs.closing.clear()

    def epoch(self, number: int) -> EpochIndex:
        """The index of an epoch: from memory, from the cache folder, or built by cutting every shard."""
        with self._lock:
            if number not in self._indices:
                self._indices[number] = (self.ahead or self.epochs).index(number)
                if len(self._indices) > 2:
                    self._indices.popitem(last=False)
            self._indices.move_to_end(number)
            return self._indices[number]

    def epoch_start(self, epoch: int) -> int:
        """The position of the first instance of an epoch. Needs the indices of all earlier epochs."""
        with self._lock:
            while len(self._starts) <= epoch:
                self._starts.append(self._starts[-1] + self.epoch(len(self._starts) - 1).size)
            return self._starts[epoch]

    def reach(self, first: int, count: int) -> list[tuple[int, int, int]]:
        """Where the `count` instances from position `first` of the run are: (epoch, place in it, how many), in order.

        The indices of these epochs are there afterwards.
        """
        with self._lock:
            while self._starts[-1] <= first:
                self.epoch_start(len(self._starts))
            epoch, parts = bisect_right(self._starts, first) - 1, []
            while count > 0:
                begin, end = self.epoch_start(epoch), self.epoch_start(epoch + 1)
                parts.append((epoch, first - begin, min(count, end - first)))
                if self.ahead is not None and epoch not in self._started:
                    self._started.add(epoch)
                    self.ahead.started(epoch, begin, end)
                count -= parts[-1][2]
                first, epoch = end, epoch + 1
            return parts

    def instances(self, first: int, count: int) -> References:
        """The `count` instances from position `first` of the run."""
        return References.join([self.epoch(epoch).references(*where) for epoch, *where in self.reach(first, count)])
