"""The index of an epoch: the number of instances of each shard, their lengths, and their order.

An epoch visits its shards in a random order. Windows of successive shards, with at most some 200,000 instances in all,
are shuffled as one. With the index any position of the epoch is found at once, and every rank knows all lengths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bertsmith.base import streams
from bertsmith.base.layout import Ints
from bertsmith.batches.pairs import Account

WINDOW_INSTANCES = 200_000
ACCOUNT_FIELDS = tuple(each.name for each in fields(Account))


@dataclass(frozen=True)
class Stream:
    """The random numbers of one epoch of one phase."""

    seed: int
    phase: str | int
    epoch: int

    def key(self, purpose: str, where: int = 0) -> int:
        """The key of a purpose (pairs, masks, ...) and a place (a shard, a window)."""
        return streams.stream_key(self.seed, self.phase, self.epoch, purpose, where)


@dataclass(frozen=True)
class References:
    """References to n instances. epochs, shards, instances (numbers within the shard), lengths in slots: int64[n]."""

    epochs: Ints
    shards: Ints
    instances: Ints
    lengths: Ints

    def __len__(self) -> int:
        return len(self.shards)

    def __getitem__(self, chosen: Ints | slice) -> References:
        return References(*(getattr(self, each.name)[chosen] for each in fields(References)))

    @classmethod
    def join(cls, parts: Sequence[References]) -> References:
        """The references of all `parts`, concatenated."""
        if len(parts) == 1:
            return parts[0]
        return cls(*(np.concatenate([getattr(part, each.name) for part in parts]) for each in fields(cls)))


@dataclass(frozen=True)
class EpochIndex:
    """table: int64[shards, 7], the account of each shard, fields in the order of `Account`. lengths: uint16[instances],
    length in slots of every instance, shard by shard in the order of the corpus."""

    stream: Stream
    table: NDArray[np.int64]
    lengths: NDArray[np.uint16]

    @property
    def size(self) -> int:
        """Instances of the epoch."""
        return len(self.lengths)

    @cached_property
    def account(self) -> Account:
        """What part of the corpus the epoch visits."""
        return Account(*(int(total) for total in self.table.sum(axis=0)))

    @cached_property
    def _counts(self) -> Ints:
        return self.table[:, ACCOUNT_FIELDS.index("instances")]

    @cached_property
    def _shard_starts(self) -> Ints:
        """The index of the first length of each shard."""
        return np.cumsum(self._counts) - self._counts

    @cached_property
    def windows(self) -> list[Ints]:
        """The shards of each window, in the order in which the epoch visits them."""
        windows, members, held = [], list[int](), 0
        for shard in visiting_order(self.stream, len(self._counts)):
            count = int(self._counts[shard])
            if members and held + count > WINDOW_INSTANCES:
                windows.append(np.array(members))
                members, held = [], 0
            members.append(shard)
            held += count
        return [*windows, np.array(members)]

    @cached_property
    def _window_starts(self) -> Ints:
        """The position of the first instance of each window in the epoch, and the end of the epoch."""
        return np.concatenate(([0], np.cumsum([int(self._counts[members].sum()) for members in self.windows])))

    @cached_property
    def _shuffles(self) -> dict[int, References]:
        return {}

    def _shuffled(self, window: int) -> References:
        """A window's instances in their order. The last two are kept: a step is in one window or spans two."""
        if window not in self._shuffles:
            members = self.windows[window]
            edges = np.cumsum(self._counts[members])
            chosen = streams.generator(self.stream.key("window", window)).permutation(int(edges[-1]))
            which = np.searchsorted(edges, chosen, side="right")
            shards = members[which]
            instances = chosen - (edges[which] - self._counts[shards])
            lengths = self.lengths[self._shard_starts[shards] + instances].astype(np.int64)
            while len(self._shuffles) > 1:
                del self._shuffles[next(iter(self._shuffles))]
            epochs = np.full(len(chosen), self.stream.epoch)
            self._shuffles[window] = References(epochs, shards, instances, lengths)
        return self._shuffles[window]

    def references(self, first: int, count: int) -> References:
        """Instances `first` to `first + count` of the epoch, 0 <= first, first + count <= size."""
        parts = []
        while count > 0:
            window = int(np.searchsorted(self._window_starts, first, side="right")) - 1
            begin, end = self._window_starts[window : window + 2].tolist()
            take = min(count, end - first)
            parts.append(self._shuffled(window)[first - begin : first - begin + take])
            first, count = first + take, count - take
        return References.join(parts)


def visiting_order(stream: Stream, shards: int) -> list[int]:
    """The order in which an epoch visits its shards."""
    order: list[int] = streams.generator(stream.key("shards")).permutation(shards).tolist()
    return order
