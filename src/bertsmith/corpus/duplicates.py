"""Exact duplicates: documents whose text differs in white space at most. The first in source order is kept.

Hashes are sorted within each part when it is cleaned. Here they are compared range by range, a range being a slice of
all hashes that is small enough for memory, so memory does not grow with the corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.parts import make_once

RANGE_DOCUMENTS = 1 << 20


@dataclass(frozen=True)
class RangeTask:
    """One range of hashes: number `index` of `ranges` equal ones, over the cleaned parts."""

    folder: Path
    made_of: str
    index: int
    ranges: int
    parts: tuple[Path, ...]

    def __str__(self) -> str:
        return f"looking for duplicates, range {self.index + 1} of {self.ranges}"


def ranges_for(documents: int) -> int:
    """How many ranges keep each at about a million documents."""
    return max(1, -(-documents // RANGE_DOCUMENTS))


def find_duplicates(task: RangeTask) -> dict[str, Any]:
    """Writes drops.npy, int64[D, 4]: (part, document) of every later copy, in rising order, and of the first one."""

    def make(folder: Path) -> dict[str, Any]:
        low, high = (number * 2**64 // task.ranges for number in (task.index, task.index + 1))
        rows = [rows_between(path / "sorted.npy", number, low, high) for number, path in enumerate(task.parts)]
        table = np.concatenate([*rows, np.zeros((0, 4), np.uint64)])
        table = table[np.lexsort((table[:, 2], table[:, 3], table[:, 1], table[:, 0]))]
        is_copy = np.zeros(len(table), np.bool_)
        is_copy[1:] = (table[1:, :2] == table[:-1, :2]).all(axis=1)
        firsts = np.maximum.accumulate(np.where(is_copy, 0, np.arange(len(table))))
        later = np.flatnonzero(is_copy)
        drops = np.hstack((table[later][:, [3, 2]], table[firsts[later]][:, [3, 2]])).astype(np.int64)
        np.save(folder / "drops.npy", drops[np.lexsort((drops[:, 1], drops[:, 0]))])
        return {"dropped": len(drops)}

    return make_once(task.folder, task.made_of, make)


def rows_between(path: Path, part: int, low: int, high: int) -> NDArray[np.uint64]:
    """uint64[N, C + 1]: rows of a sorted table with low <= column 0 < high, behind each the number of the part."""
    table = np.load(path, mmap_mode="r", allow_pickle=False)
    first = int(np.searchsorted(table[:, 0], np.uint64(low)))
    last = len(table) if high == 2**64 else int(np.searchsorted(table[:, 0], np.uint64(high)))
    rows = np.array(table[first:last])
    return np.column_stack([rows, np.full(len(rows), part, np.uint64)])


def dropped_rows(folders: Sequence[Path], part: int) -> NDArray[np.int64]:
    """int64[D, C]: what drops.npy of these folders hold of one part, documents (column 1) rising.

    Each of the folders has rows of the same kind, in rising order of part and document.
    """
    found = []
    for folder in folders:
        drops = np.load(folder / "drops.npy", mmap_mode="r", allow_pickle=False)
        first, last = np.searchsorted(drops[:, 0], (part, part + 1))
        found.append(np.array(drops[first:last]))
    rows = np.concatenate(found) if found else np.zeros((0, 2), np.int64)
    return np.asarray(rows[np.argsort(rows[:, 1], kind="stable")], dtype=np.int64)


def dropped_documents(folders: Sequence[Path], part: int) -> NDArray[np.int64]:
    """int64[D]: the documents of a part that these folders drop, whatever kinds of rows they have."""
    found = [dropped_rows([folder], part)[:, 1] for folder in folders]
    return np.concatenate(found) if found else np.zeros(0, np.int64)
