"""Tables of hashes that every part has sorted, read range by range over all parts, a range being small enough for
memory: so memory does not grow with the corpus."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertsmith.corpus.engines.parts import Part

RANGE_ROWS = 1 << 20


@dataclass(frozen=True)
class RangeTask(Part):
    """One range of hashes, number `index` of `ranges` equal ones, over the parts. what: is looked for in it."""

    what: str
    index: int
    ranges: int
    parts: tuple[Path, ...]

    def __str__(self) -> str:
        return f"looking for {self.what}, range {self.index + 1} of {self.ranges}"

    def table(self, name: str) -> NDArray[np.uint64]:
        """uint64[N, C + 1]: the rows of this range of every part's table `name` (uint64[K, C], rising), in the order of
        the parts, behind each row the number of its part."""
        low, high = (number * 2**64 // self.ranges for number in (self.index, self.index + 1))
        return np.concatenate([_rows_between(part / name, number, low, high) for number, part in enumerate(self.parts)])


def ranges_for(rows: int) -> int:
    """How many ranges keep each at about a million rows."""
    return max(1, -(-rows // RANGE_ROWS))


def _rows_between(path: Path, part: int, low: int, high: int) -> NDArray[np.uint64]:
    table = np.load(path, mmap_mode="r", allow_pickle=False)
    first = int(np.searchsorted(table[:, 0], np.uint64(low)))
    last = len(table) if high == 2**64 else int(np.searchsorted(table[:, 0], np.uint64(high)))
    rows = np.array(table[first:last])
    return np.column_stack([rows, np.full(len(rows), part, np.uint64)])
