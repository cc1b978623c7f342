"""Rows of cells as lines of text with aligned columns."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]], flush: str = "lr", gap: str = "  ") -> list[str]:
    """A line a row, every column as wide as its widest cell.

    flush: "l" or "r" for each column, left or right; the last letter holds for all further columns.
    """
    if not rows:
        return []
    count = max(map(len, rows))
    widths = [max((len(row[column]) for row in rows if column < len(row)), default=0) for column in range(count)]
    sides = flush[:count] + flush[-1] * (count - len(flush))

    def shown(cell: str, column: int) -> str:
        return cell.rjust(widths[column]) if sides[column] == "r" else cell.ljust(widths[column])

    return [gap.join(shown(cell, column) for column, cell in enumerate(row)).rstrip() for row in rows]
