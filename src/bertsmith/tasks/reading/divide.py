"""Training rows divided for trainings that tell how far to trust a score: shares of a learning curve, and folds."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bertsmith.base.errors import BertsmithError
from bertsmith.base.streams import stream_key
from bertsmith.tasks.reading.parts import divisible
from bertsmith.tasks.reading.records import Record, RowReader
from bertsmith.tasks.reading.split import split

Places = list[int]


def curve_rows(
    records: Sequence[Record], reader: type[RowReader], shares: Sequence[int], seed: int
) -> list[tuple[int, Places]]:
    """(share in percent, places of the rows) of each share, the smaller ones out of the larger ones. Raises
    BertsmithError where there are too few rows to divide."""
    if not shares:
        return []
    divide = _divider(records, reader, seed)
    rows, before, found = list(range(len(records))), 100, []
    for share in sorted(shares, reverse=True):
        _, rows = divide(rows, share / before, share)
        before = share
        found.append((share, rows))
    return found[::-1]


def fold_rows(records: Sequence[Record], reader: type[RowReader], folds: int, seed: int) -> list[tuple[Places, Places]]:
    """Places of (rows to learn from, rows to measure on) of each of so many folds, 0 for none; every row is measured on
    once. Raises BertsmithError where there are too few rows to divide."""
    if not folds:
        return []
    divide = _divider(records, reader, seed)
    every = list(range(len(records)))
    rest, found = every, []
    for number in range(folds - 1):
        rest, fold = divide(rest, 1 / (folds - number), number)
        found.append(fold)
    return [(np.setdiff1d(every, fold).tolist(), fold) for fold in (*found, rest)]


def _divider(
    records: Sequence[Record], reader: type[RowReader], seed: int
) -> Callable[[Places, float, int], tuple[Places, Places]]:
    """Divides places of training rows, by class and without cutting a group: (the rest, a share)."""
    classes, units, grouped = divisible(records, reader)

    def divide(rows: Places, share: float, number: int) -> tuple[Places, Places]:
        key = stream_key(seed, "divide", number)
        try:
            found = split([classes[row] for row in rows], [units[row] for row in rows], share, key, grouped)
        except BertsmithError as error:
            what = f"{len(records):,} training rows are too few to be divided ({error.what})"
            fix = "use fewer --folds, leave out --folds and --learning-curve, or give more rows"
            raise BertsmithError(what, "train", fix) from error
        return [rows[place] for place in found.train], [rows[place] for place in found.dev]

    return divide
