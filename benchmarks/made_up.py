"""Batches of random tokens with lengths of our choosing: what a step costs depends on lengths, not on words."""

from __future__ import annotations

import numpy as np

from bertsmith.base.layout import Layout
from bertsmith.batches.packing import PretrainBatch

SPECIAL_PIECES = 3


def lengths_of(kind: str, sequences: int, longest: int, seed: int = 0) -> np.ndarray:
    """int64[sequences]. "full": all `longest`. "ragged": drawn evenly from a third of `longest` up to it."""
    if kind == "full":
        return np.full(sequences, longest, dtype=np.int64)
    return np.random.default_rng(seed).integers(longest // 3, longest + 1, sequences)


def pretrain_batch(lengths: np.ndarray, vocabulary: int, seed: int = 0) -> PretrainBatch:
    """Packed pairs of these lengths, 15% of their tokens masked."""
    draw = np.random.default_rng(seed)
    layout = Layout.from_lengths(lengths)
    masked_counts = np.maximum(1, np.rint(lengths * 0.15)).astype(np.int64)
    masked = [
        first + 1 + np.sort(draw.choice(length - SPECIAL_PIECES, count, replace=False))
        for first, length, count in zip(layout.first_slots, lengths, masked_counts, strict=True)
    ]
    positions = np.concatenate(masked)
    return PretrainBatch(
        input_ids=draw.integers(5, vocabulary, layout.tokens),
        token_type_ids=(layout.positions >= np.repeat(lengths // 2, lengths)).astype(np.int64),
        position_ids=layout.positions,
        layout=layout,
        masked_positions=positions,
        masked_labels=draw.integers(5, vocabulary, len(positions)),
        next_sentence_labels=draw.integers(0, 2, len(lengths)),
    )
