"""The epochs of one phase: their instances, drawn from the shards of a corpus, and their indices.

What is kept of an epoch on disk is in `epoch_files`. Instances that are not there are drawn when they are needed; the
most recent ones are held in memory.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import Progress, warn
from bertsmith.batches.epoch_files import EpochFiles
from bertsmith.batches.epoch_index import WINDOW_INSTANCES, EpochIndex, Stream
from bertsmith.batches.pairs import Instances, PairSettings, check_sequence_length, draw_pairs
from bertsmith.corpus.shards import Shard, ShardInfo
from bertsmith.tokens.special_ids import SpecialIds

# Increase it when the same settings give other instances or another order, so that old indices are not used.
_VERSION = 1


class Closing(Exception):
    """Ends the work on an epoch that nobody waits for any more."""


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


class Epochs:
    """The epochs of one phase, each a pure function of these settings and its number.

    closing: set while all work on them is to end. Memory: some 400,000 instances (25 bytes each), or those of two
    shards where that is more.
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
            fix = "prepare it with more documents, or another --held-out"
            raise BertsmithError(f"the corpus has no {split} documents", split, fix)
        self.files = EpochFiles(cache_folder, self._fingerprint(), len(self.shards)) if cache_folder else None
        self.keeps_indices = True
        self.closing = threading.Event()
        self._lock = threading.RLock()
        self._drawn: OrderedDict[tuple[int, int], DrawnShard] = OrderedDict()
        self._held_instances = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the settings only, without what is held in memory."""
        names = ("split", "seed", "phase", "sequence_length", "pairs", "cache_folder")
        return partial(Epochs, self.source, **{name: getattr(self, name) for name in names}), ()

    def go_on(self) -> None:
        """Called between the parts of long work: raises Closing where `closing` is set."""
        if self.closing.is_set():
            raise Closing

    def stream(self, epoch: int) -> Stream:
        """The random numbers of an epoch."""
        return Stream(self.seed, self.phase, epoch)

    def index(self, number: int) -> EpochIndex:
        """The index of an epoch, from the cache folder if it is there, else built."""
        found = self.files.read_index(self.stream(number)) if self.files else None
        return self.build(number) if found is None else found

    def build(self, number: int) -> EpochIndex:
        """The index of an epoch from the instances of all shards, which it keeps, if it can, in the cache folder, where
        `keeps_indices` is set."""
        with Progress(f"index of epoch {number}", sum(shard.tokens for shard in self.shards), "token") as progress:
            index = self.collected(number, progress.advance)
        if self.files and self.keeps_indices:
            try:
                self.files.write_index(index)
            except (BertsmithError, OSError) as error:
                warn(f"the epoch index was not saved and will be rebuilt at every start: {error}")
        return index

    def collected(self, number: int, advance: Callable[[int], None] = lambda tokens: None) -> EpochIndex:
        """The index of an epoch from the instances of all shards. advance: called with the tokens of each."""
        accounts, lengths = [], []
        for shard, info in enumerate(self.shards):
            self.go_on()
            instances = self.drawn(number, shard).instances
            accounts.append(astuple(instances.account))
            lengths.append(instances.lengths.astype(np.uint16))
            advance(info.tokens)
        return EpochIndex(self.stream(number), np.array(accounts, dtype=np.int64), np.concatenate(lengths))

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

    def _fingerprint(self) -> str:
        """Everything that an epoch's index depends on, except the epoch."""
        corpus = [
            (each.name, each.documents, each.sentences, each.tokens, sorted(each.sha256.items()))
            for each in self.shards
        ]
        pairs = {name: value for name, value in asdict(self.pairs).items() if name != "single" or value}
        return repr((_VERSION, self.split, self.seed, self.phase, self.sequence_length, pairs, corpus))
