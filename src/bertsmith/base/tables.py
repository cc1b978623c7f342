"""Rows of cells as lines of text with aligned columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest


def aligned(rows: Sequence[Sequence[str]], flush: str = "lr") -> list[str]:
    """A line a row, every column as wide as its widest cell.

    flush: "l" or "r" for each column, left or right; the last letter holds for all further columns.
    """
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    sides = flush.ljust(len(widths), flush[-1])

    def shown(cell: str, width: int, side: str) -> str:
        return cell.rjust(width) if side == "r" else cell.ljust(width)

    return ["  ".join(map(shown, row, widths, sides)).rstrip() for row in rows]
