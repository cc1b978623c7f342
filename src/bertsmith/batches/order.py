"""The order of a phase: which instance is at which position of the run, as a pure function of its settings.

Epochs follow one another without a gap; each cuts the documents into new pairs. Only the epoch indices are stored: the
instances of a shard are cut again when they are needed, and the most recent ones are kept in memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import Progress
from bertsmith.batches.epochs import WINDOW_INSTANCES, EpochIndex, References, Stream
from bertsmith.batches.index_cache import index_path, read_index, write_index
from bertsmith.batches.pairs import Account, Instances, PairSettings, check_sequence_length, draw_pairs
from bertsmith.corpus.shards import Shard, ShardInfo
from bertsmith.tokens.special_ids import SpecialIds

# Increase it when the same settings give other instances or another order, so that old indices are not used.
_VERSION = 1


class ShardSource(Protocol):
    """A source of shards, such as `corpus.shards.Corpus`."""

    @property
    def special(self) -> SpecialIds: ...

    def shards(self, split: str) -> list[ShardInfo]: ...

    def open_shard(self, split: str, index: int) -> Shard: ...


@dataclass(frozen=True)
class DrawnShard:
    """A shard cut for one epoch: its tokens (memory-mapped) and its instances."""

    tokens: NDArray[np.unsignedinteger[Any]]
    instances: Instances


class Order:
    """The instances of one phase, by their position in the run, from 0.

    Memory: two epoch indices (two bytes per instance, memory-mapped if cached), the shuffles of two windows, and some
    400,000 instances (25 bytes each) or those of two shards, whichever is more.
    """

    def __init__(
        self,
        source: ShardSource,
        *,
        split: str = "train",
        seed: int,
        phase: str | int,
        sequence_length: int,
        pairs: PairSettings | None = None,
        cache_folder: Path | None = None,
    ) -> None:
        """cache_folder: where epoch indices are stored; with None they are rebuilt at every start.

        Raises BertsmithError for a split without documents and for an impossible sequence length.
        """
        check_sequence_length(sequence_length)
        self.source, self.split, self.seed, self.phase = source, split, seed, phase
        self.sequence_length, self.pairs, self.cache_folder = sequence_length, pairs or PairSettings(), cache_folder
        self._shards = source.shards(split)
        if not any(shard.documents for shard in self._shards):
            raise BertsmithError(f"the corpus has no {split} documents", split, "prepare a corpus with more documents")
        self._lock = threading.RLock()
        self._starts = [0]
        self._epochs: OrderedDict[int, EpochIndex] = OrderedDict()
        self._drawn: OrderedDict[tuple[int, int], DrawnShard] = OrderedDict()
        self._held_instances = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the settings only, without what is held in memory."""
        names = ("split", "seed", "phase", "sequence_length", "pairs", "cache_folder")
        return partial(Order, self.source, **{name: getattr(self, name) for name in names}), ()

    def stream(self, epoch: int) -> Stream:
        """The random numbers of an epoch."""
        return Stream(self.seed, self.phase, epoch)

    def epoch(self, number: int) -> EpochIndex:
        """The index of an epoch: from memory, from the cache folder, or built by cutting every shard."""
        with self._lock:
            if number not in self._epochs:
                self._epochs[number] = self._read_or_build(number)
                if len(self._epochs) > 2:
                    self._epochs.popitem(last=False)
            self._epochs.move_to_end(number)
            return self._epochs[number]

    def _read_or_build(self, number: int) -> EpochIndex:
        stream = self.stream(number)
        path = index_path(self.cache_folder, self._fingerprint(), number) if self.cache_folder else None
        index = read_index(path, stream, len(self._shards)) if path else None
        if index is not None:
            return index
        accounts, lengths = [], []
        with Progress(f"index of epoch {number}", sum(shard.tokens for shard in self._shards), "token") as progress:
            for shard, info in enumerate(self._shards):
                instances = self.drawn(number, shard).instances
                accounts.append(instances.account)
                lengths.append(instances.lengths.astype(np.uint16))
                progress.advance(info.tokens)
        index = EpochIndex.of(stream, accounts, np.concatenate(lengths))
        if path:
            write_index(path, index)
        return index

    def _fingerprint(self) -> str:
        """Everything that an epoch's index depends on, except the epoch."""
        corpus = [
            (each.name, each.documents, each.sentences, each.tokens, sorted(each.sha256.items()))
            for each in self._shards
        ]
        return repr((_VERSION, self.split, self.seed, self.phase, self.sequence_length, asdict(self.pairs), corpus))

    def account(self, epoch: int) -> Account:
        """What an epoch visits of the corpus: visited = corpus - truncated + repeated."""
        return self.epoch(epoch).account

    def epoch_start(self, epoch: int) -> int:
        """The position of the first instance of an epoch. Needs the indices of all earlier epochs."""
        with self._lock:
            while len(self._starts) <= epoch:
                self._starts.append(self._starts[-1] + self.epoch(len(self._starts) - 1).size)
            return self._starts[epoch]

    def instances(self, first: int, count: int) -> References:
        """The `count` instances from position `first` of the run."""
        epoch = 0
        while self.epoch_start(epoch + 1) <= first:
            epoch += 1
        parts = []
        while count > 0:
            take = min(count, self.epoch_start(epoch + 1) - first)
            parts.append(self.epoch(epoch).references(first - self.epoch_start(epoch), take))
            first, count, epoch = first + take, count - take, epoch + 1
        return References.join(parts)

    def drawn(self, epoch: int, shard: int) -> DrawnShard:
        """A shard's tokens and its instances in an epoch, cut now or taken from memory."""
        with self._lock:
            drawn = self._drawn.get((epoch, shard))
            if drawn is None:
                drawn = self._draw(epoch, shard)
                self._drawn[epoch, shard] = drawn
                self._held_instances += len(drawn.instances)
                while self._held_instances > 2 * WINDOW_INSTANCES and len(self._drawn) > 2:
                    _, oldest = self._drawn.popitem(last=False)
                    self._held_instances -= len(oldest.instances)
            self._drawn.move_to_end((epoch, shard))
            return drawn

    def _draw(self, epoch: int, shard: int) -> DrawnShard:
        opened = self.source.open_shard(self.split, shard)
        key = self.stream(epoch).key("pairs", shard)
        pairs = self.pairs
        instances = draw_pairs(opened, key, self.sequence_length, pairs.random_next, pairs.short_sequences)
        return DrawnShard(np.asarray(opened.tokens), instances)
