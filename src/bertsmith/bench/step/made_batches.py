"""Batches of random tokens with chosen lengths: the cost of a step depends on lengths, not on words."""

from __future__ import annotations

import numpy as np

from bertsmith.base.layout import Ints, Layout
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.packing import PretrainBatch

_TAIL_128 = (6, 37, 46, 53, 60, 66, 73, 80, 89, 98, 108, 118)
_TAIL_512 = (7, 41, 53, 63, 73, 87, 102, 120, 137, 159, 185, 212, 244, 274, 301, 335, 373, 408, 445, 482)

PERCENTILES = {128: (*_TAIL_128, *[128] * 39), 512: (*_TAIL_512, *[512] * 31)}
"""Every second percentile, from 0 to 100, of the lengths of an epoch's pairs, in pieces of bert-base-uncased. Those of
60 MB of English Wikipedia (2015) gave it by

    lengths = Epochs(corpus, seed=0, phase=1, sequence_length=length).index(0).lengths
    np.rint(np.percentile(lengths, np.arange(0, 101, 2))).astype(np.int64)
"""
# Ids below this one stand for special pieces.
_FIRST_WORD = 5


def lengths_of(kind: str, sequences: int, longest: int, seed: int = 0) -> Ints:
    """int64[sequences]. "full": all `longest`. "ragged": drawn evenly from 40 / 128 of `longest` up to it.
    "wikipedia": as long as pairs of Wikipedia are at this length, one of those in `PERCENTILES`."""
    draw = np.random.default_rng(seed)
    if kind == "full":
        return np.full(sequences, longest, dtype=np.int64)
    if kind == "wikipedia":
        known = PERCENTILES[longest]
        return np.rint(np.interp(draw.random(sequences), np.linspace(0, 1, len(known)), known)).astype(np.int64)
    assert kind == "ragged", kind
    return draw.integers(longest * 40 // 128, longest + 1, sequences)


def pretrain_batch(lengths: Ints, vocabulary: int, seed: int = 0) -> PretrainBatch:
    """Packed pairs of these lengths, as many of their tokens masked as BERT's rate says."""
    draw = np.random.default_rng(seed)
    layout = Layout.from_lengths(lengths)
    counts = MaskingSettings().predictions(lengths)
    masked = [
        first + 1 + np.sort(draw.choice(length - 3, count, replace=False))
        for first, length, count in zip(layout.first_slots, lengths, counts, strict=True)
    ]
    positions = np.concatenate(masked)
    return PretrainBatch(
        input_ids=draw.integers(_FIRST_WORD, vocabulary, layout.tokens),
        token_type_ids=(layout.positions >= np.repeat(lengths // 2, lengths)).astype(np.int64),
        position_ids=layout.positions,
        layout=layout,
        masked_positions=positions,
        masked_labels=draw.integers(_FIRST_WORD, vocabulary, len(positions)),
        next_sentence_labels=draw.integers(0, 2, len(lengths)),
    )


def padded(batch: PretrainBatch, longest: int) -> PretrainBatch:
    """The batch as padding would have it: every sequence takes `longest` slots, and those added hold [PAD].

    What it costs is what matters here, so the added slots are attended to like all others.
    """
    layout = Layout.from_lengths(np.full(batch.layout.sequences, longest, dtype=np.int64))
    rows = np.repeat(np.arange(batch.layout.sequences), batch.layout.lengths)
    slots = rows * longest + batch.layout.positions
    ids, types = np.zeros((2, layout.tokens), dtype=np.int64)
    ids[slots], types[slots] = batch.input_ids, batch.token_type_ids
    return PretrainBatch(
        input_ids=ids,
        token_type_ids=types,
        position_ids=layout.positions,
        layout=layout,
        masked_positions=slots[batch.masked_positions],
        masked_labels=batch.masked_labels,
        next_sentence_labels=batch.next_sentence_labels,
    )
