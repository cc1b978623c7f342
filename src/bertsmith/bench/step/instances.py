"""The instances of both sides of a step bench: made once, written to a file, read by every process.

A file is an `.npz` with the arrays of each batch under its number.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.base.layout import Layout
from bertsmith.batches.epochs import Epochs, ShardSource
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.order import Order
from bertsmith.batches.packing import PretrainBatch
from bertsmith.batches.steps import StepBuilder

_ARRAYS = tuple(each.name for each in fields(PretrainBatch) if each.name != "layout")


def write_batches(path: Path, batches: Sequence[PretrainBatch]) -> None:
    """Writes the batches in their order."""
    arrays: dict[str, Any] = {}
    for number, batch in enumerate(batches):
        arrays |= {f"{number}.{name}": getattr(batch, name) for name in _ARRAYS}
        arrays[f"{number}.lengths"] = batch.layout.lengths
    np.savez(path, **arrays)


def read_batches(path: Path) -> list[PretrainBatch]:
    """The batches of a file, in the order in which they were written."""
    batches: list[PretrainBatch] = []
    with np.load(path, allow_pickle=False) as found:
        while f"{len(batches)}.lengths" in found:
            number = len(batches)
            arrays = {name: found[f"{number}.{name}"] for name in _ARRAYS}
            batches.append(PretrainBatch(layout=Layout.from_lengths(found[f"{number}.lengths"]), **arrays))
    return batches


def real_batches(source: ShardSource, length: int, sequences: int, count: int, folder: Path) -> list[PretrainBatch]:
    """The first `count` steps of a run at this length, each of `sequences` real pairs. folder: for the epoch index."""
    order = Order(Epochs(source, seed=0, phase=1, sequence_length=length, cache_folder=folder))
    builder = StepBuilder(order, sequences, MaskingSettings(), micro_batch_tokens=sequences * length)
    return [batch for number in range(count) for batch in builder.build(number).micro_batches]
