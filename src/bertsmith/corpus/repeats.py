"""How much of a corpus is text that it holds more than once. Copies of documents are dropped when it is prepared; what
is left repeats other documents but for some words, or comes from a page that is part of many."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.shards import LONGEST_SENTENCE, Corpus, Shard

SAMPLE_SHARDS = 16
"""Of these many shards, evenly spaced, every sentence is looked at: some 16 million tokens."""
SHORTEST = 8
"""Sentences of fewer pieces, which are alike by chance, are not looked at."""


def repeated_share(corpus: Corpus) -> float:
    """The share of the training documents' tokens that stand in a sentence which the sample has had before, of those in
    sentences of at least SHORTEST pieces; 0 where there are none."""
    count = len(corpus.shards("train"))
    places = sorted({round(place) for place in np.linspace(0, count - 1, min(count, SAMPLE_SHARDS))})
    found = [_hashes(corpus.open_shard("train", place)) for place in places]
    hashes, lengths = (np.concatenate(each) for each in zip(*found, strict=True)) if found else (np.zeros(0),) * 2
    _, firsts = np.unique(hashes, return_index=True)
    return float(1 - lengths[firsts].sum() / lengths.sum()) if len(lengths) else 0.0


def _hashes(shard: Shard) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """uint64[S], int64[S]: a hash of the pieces in their order, and the length, of every sentence that is looked at."""
    offsets = shard.sentence_offsets
    lengths = np.diff(offsets)
    weights = np.random.default_rng(0).integers(1, 1 << 63, LONGEST_SENTENCE + 1, dtype=np.uint64)
    places = np.arange(len(shard.tokens)) - np.repeat(offsets[:-1], lengths)
    hashes = np.add.reduceat((shard.tokens.astype(np.uint64) + 1) * weights[places], offsets[:-1])
    is_long = lengths >= SHORTEST
    return hashes[is_long], lengths[is_long]
