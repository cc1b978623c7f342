"""The order of a phase: which instance is at which position of the run, as a pure function of its settings.

Epochs follow one another without a gap; each cuts the documents into new pairs. What is kept on disk of an epoch is in
`epoch_files`. Instances that are not there are cut when they are needed; the most recent ones are held in memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import Progress, warn
from bertsmith.batches.ahead import Ahead
from bertsmith.batches.epoch_files import EpochFiles
from bertsmith.batches.epochs import WINDOW_INSTANCES, EpochIndex, References, Stream
from bertsmith.batches.pairs import Account, Instances, PairSettings, check_sequence_length, draw_pairs
from bertsmith.batches.shares import Share
from bertsmith.corpus.shards import Shard, ShardInfo
from bertsmith.tokens.special_ids import SpecialIds

# Increase it when the same settings give other instances or another order, so that old indices are not used.
_VERSION = 1


class ShardSource(Protocol):
    """A source of shards, such as `corpus.shards.Corpus`."""

    @property
    def special(self) -> SpecialIds: ...

    @property
    def is_continuation(self) -> NDArray[np.bool_]: ...

    def shards(self, split: str) -> list[ShardInfo]: ...

    def open_shard(self, split: str, index: int) -> Shard: ...


@dataclass(frozen=True)
class DrawnShard:
    """A shard cut for one epoch: its tokens (memory-mapped) and its instances."""

    tokens: NDArray[np.unsignedinteger[Any]]
    instances: Instances


class Order:
    """The instances of one phase, by their position in the run, from 0.

    Memory: two epoch indices (two bytes per instance, memory-mapped if cached) with two windows of references each (32
    bytes per instance), and some 400,000 instances (25 bytes each) or those of two shards, whichever is more.
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
        self.shards = source.shards(split)
        if not any(shard.documents for shard in self.shards):
            raise BertsmithError(f"the corpus has no {split} documents", split, "prepare a corpus with more documents")
        self.files = EpochFiles(cache_folder, self._fingerprint(), len(self.shards)) if cache_folder else None
        self.ahead: Ahead | None = None
        self.keeps_indices = True
        self._lock = threading.RLock()
        self._starts = [0]
        self._started: set[int] = set()
        self._epochs: OrderedDict[int, EpochIndex] = OrderedDict()
        self._drawn: OrderedDict[tuple[int, int], DrawnShard] = OrderedDict()
        self._held_instances = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the settings only, without what is held in memory or built ahead."""
        names = ("split", "seed", "phase", "sequence_length", "pairs", "cache_folder")
        return partial(Order, self.source, **{name: getattr(self, name) for name in names}), ()

    def build_ahead(self, share: Share, end: int) -> None:
        """Makes epochs together with other ranks, each of them ahead of its use, until `close`.

        share: this rank's, of what is kept in `cache_folder`. end: the position at which training ends.
        """
        if self.files is not None:
            self.ahead = Ahead(self, self.files, share, end)

    def stop_waiting(self) -> None:
        """Before `close`: a thread that waits for the index of an epoch, or builds a step, fails and does not go on."""
        if self.ahead is not None:
            self.ahead.stop_waiting()

    def go_on(self) -> None:
        """Raises Closing after `stop_waiting`: called between the parts of long work."""
        if self.ahead is not None:
            self.ahead.go_on()

    def close(self, finished: bool = False) -> None:
        """Builds nothing ahead any more. finished: whether no instance is needed any more."""
        if self.ahead is not None:
            self.ahead.close(finished)

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
        if self.ahead is not None:
            return self.ahead.index(number)
        index = self.files.read_index(self.stream(number)) if self.files else None
        return self.build(number) if index is None else index

    def build(self, number: int) -> EpochIndex:
        """The index of an epoch from the instances of all shards, which it keeps, if it can, in the cache folder, where
        `keeps_indices` is set."""
        with Progress(f"index of epoch {number}", sum(shard.tokens for shard in self.shards), "token") as progress:
            index = self.collected(number, progress.advance)
        if self.files and self.keeps_indices:
            try:
                self.files.write_index(index)
            except BertsmithError as error:
                what = "the epoch index was not saved and will be rebuilt at every start"
                warn(f"{what}: {error.what} ({error.where})")
        return index

    def collected(self, number: int, advance: Callable[[int], None] = lambda tokens: None) -> EpochIndex:
        """The index of an epoch from the instances of all shards. advance: called with the tokens of each."""
        accounts, lengths = [], []
        for shard, info in enumerate(self.shards):
            self.go_on()
            instances = self.drawn(number, shard).instances
            accounts.append(instances.account)
            lengths.append(instances.lengths.astype(np.uint16))
            advance(info.tokens)
        return EpochIndex.of(self.stream(number), accounts, np.concatenate(lengths))

    def _fingerprint(self) -> str:
        """Everything that an epoch's index depends on, except the epoch."""
        corpus = [
            (each.name, each.documents, each.sentences, each.tokens, sorted(each.sha256.items()))
            for each in self.shards
        ]
        pairs = {name: value for name, value in asdict(self.pairs).items() if name != "single" or value}
        return repr((_VERSION, self.split, self.seed, self.phase, self.sequence_length, pairs, corpus))

    def account(self, epoch: int) -> Account:
        """What an epoch visits of the corpus: visited = corpus - truncated + repeated."""
        return self.epoch(epoch).account

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
            epoch = 0
            while self.epoch_start(epoch + 1) <= first:
                epoch += 1
            parts = []
            while count > 0:
                begin, end = self.epoch_start(epoch), self.epoch_start(epoch + 1)
                parts.append((epoch, first - begin, min(count, end - first)))
                if self.ahead is not None and epoch not in self._started:
                    self._started.add(epoch)
                    self.ahead.started(epoch)
                count -= parts[-1][2]
                first, epoch = end, epoch + 1
            return parts

    def instances(self, first: int, count: int) -> References:
        """The `count` instances from position `first` of the run."""
        return References.join([self.epoch(epoch).references(*where) for epoch, *where in self.reach(first, count)])

    def drawn(self, epoch: int, shard: int) -> DrawnShard:
        """As `draw`, or from memory."""
        with self._lock:
            drawn = self._drawn.get((epoch, shard))
            if drawn is None:
                drawn = self.draw(epoch, shard)
                self._drawn[epoch, shard] = drawn
                self._held_instances += len(drawn.instances)
                while self._held_instances > 2 * WINDOW_INSTANCES and len(self._drawn) > 2:
                    _, oldest = self._drawn.popitem(last=False)
                    self._held_instances -= len(oldest.instances)
            self._drawn.move_to_end((epoch, shard))
            return drawn

    def draw(self, epoch: int, shard: int) -> DrawnShard:
        """A shard's tokens and its instances in an epoch, read from the cache folder if they are there, else cut."""
        opened = self.source.open_shard(self.split, shard)
        instances = self.files.read_shard(epoch, shard) if self.files else None
        if instances is None:
            key = self.stream(epoch).key("pairs", shard)
            instances = draw_pairs(opened, key, self.sequence_length, self.pairs)
        return DrawnShard(np.asarray(opened.tokens), instances)
