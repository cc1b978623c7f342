"""Exact duplicates: documents whose text differs in white space at most. The first in source order is kept.

Hashes are sorted within each part when it is cleaned; here they are compared range by range.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.engines.parts import makes_part
from bertsmith.corpus.filters.ranges import RangeTask
from bertsmith.corpus.stages.clean import CleanedPart


@makes_part
def find_duplicates(task: RangeTask, folder: Path) -> dict[str, Any]:
    """Writes drops.npy, int64[D, 4]: (part, document) of every later copy, in rising order, and of the first one."""
    table = task.table("sorted.npy")
    table = table[np.lexsort((table[:, 2], table[:, 3], table[:, 1], table[:, 0]))]
    is_copy = np.zeros(len(table), np.bool_)
    is_copy[1:] = (table[1:, :2] == table[:-1, :2]).all(axis=1)
    firsts = np.maximum.accumulate(np.where(is_copy, 0, np.arange(len(table))))
    later = np.flatnonzero(is_copy)
    drops = np.hstack((table[later][:, [3, 2]], table[firsts[later]][:, [3, 2]])).astype(np.int64)
    np.save(folder / "drops.npy", drops[np.lexsort((drops[:, 1], drops[:, 0]))])
    return {"dropped": len(drops)}


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


def kept_documents(cleaned: CleanedPart, folders: Sequence[Path], part: int) -> NDArray[np.bool_]:
    """bool[N]: the documents of a cleaned part that none of these folders drops."""
    kept = np.ones(len(cleaned.lengths), np.bool_)
    for folder in folders:  # one by one, as they may have rows of different kinds
        kept[dropped_rows([folder], part)[:, 1]] = False
    return kept
