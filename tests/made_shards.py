"""Corpora made in memory for the tests of batches. A token's id tells where it lies, so content can be checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.shards import Shard, ShardInfo
from bertsmith.tokens.special_ids import SpecialIds

FIRST_WORD = 10
SPECIAL = SpecialIds(pad=0, unknown=1, cls=2, sep=3, mask=4, vocabulary_size=60_000)

Documents = Sequence[Sequence[int]]
"""Sentence lengths of each document."""


def make_shard(documents: Documents, first_id: int = FIRST_WORD) -> Shard:
    """A shard whose token at position p is first_id + p."""
    sentences = [length for document in documents for length in document]
    offsets = np.concatenate(([0], np.cumsum(sentences, dtype=np.int64))).astype(np.int64)
    per_document = np.cumsum([0, *(len(document) for document in documents)], dtype=np.int64)
    return Shard(np.arange(first_id, first_id + offsets[-1]).astype(np.uint16), offsets, per_document)


def random_documents(seed: int, documents: int, sentences: int = 12, longest: int = 30) -> list[list[int]]:
    """Documents of 1 to `sentences` sentences of 1 to `longest` tokens."""
    draw = np.random.default_rng(seed)
    return [draw.integers(1, longest + 1, draw.integers(1, sentences + 1)).tolist() for _ in range(documents)]


@dataclass
class MemorySource:
    """A `ShardSource` in memory; shards of `splits` are opened by number, and the openings counted."""

    splits: dict[str, list[Shard]]
    special: SpecialIds = SPECIAL
    opened: list[tuple[str, int]] = field(default_factory=list)

    @property
    def is_continuation(self) -> NDArray[np.bool_]:
        """Of every third piece."""
        return np.arange(self.special.vocabulary_size) % 3 == 2

    def shards(self, split: str) -> list[ShardInfo]:
        """Names and counts, as a corpus lists them."""
        return [
            ShardInfo(
                f"{number:05d}", len(shard.document_offsets) - 1, len(shard.sentence_offsets) - 1, len(shard.tokens)
            )
            for number, shard in enumerate(self.splits[split])
        ]

    def open_shard(self, split: str, index: int) -> Shard:
        """The shard itself."""
        self.opened.append((split, index))
        return self.splits[split][index]


def make_source(shards: int = 3, documents: int = 30, seed: int = 0) -> MemorySource:
    """Some shards to train on and one held out. Token ids do not repeat over the shards of a split."""
    train, first = [], FIRST_WORD
    for number in range(shards):
        shard = make_shard(random_documents(seed + number, documents), first)
        train.append(shard)
        first += len(shard.tokens)
    assert first < SPECIAL.vocabulary_size
    return MemorySource({"train": train, "held_out": [make_shard(random_documents(seed + shards, 10))]})
