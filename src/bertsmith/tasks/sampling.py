"""Which rows an epoch takes: each once, or rare classes more often. Pure in (seed, epoch), so that resume is exact.

Legend: N rows, C classes.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from bertsmith.base.layout import Ints
from bertsmith.base.streams import generator, stream_key

Sampling = Literal["natural", "balanced", "sqrt"]


def rows_of_epoch(rows: int, classes: Ints | None, sampling: Sampling, seed: int, epoch: int) -> Ints:
    """The rows of an epoch, in its order: int64[N]. classes: of each row, int64[N]; "natural" needs none.

    natural: every row once. balanced: as many of every class. sqrt: of each class in proportion to the square root of
    its rows, half way between. Every epoch has N rows. A class's rows are taken in turn, in an order drawn anew
    whenever all have been taken, and the next epoch continues where this one ended: so no row is taken a second time
    more often than another of its class, and rows that one epoch leaves out come in the next. epoch: from 1.
    """
    order = generator(stream_key(seed, "finetune", epoch, "order"))
    if sampling == "natural" or classes is None:
        return np.asarray(order.permutation(rows), dtype=np.int64)
    counts = np.bincount(classes)
    members = np.split(np.argsort(classes, kind="stable"), np.cumsum(counts)[:-1])
    shares = quotas(counts, rows, sampling)
    taken = [
        _in_turn(those, (epoch - 1) * int(share), int(share), stream_key(seed, "sampling", number))
        for number, (those, share) in enumerate(zip(members, shares, strict=True))
    ]
    return np.asarray(order.permutation(np.concatenate(taken)), dtype=np.int64)


def quotas(counts: Ints, total: int, sampling: Sampling) -> Ints:
    """How many of `total` rows come from each class: int64[C]. counts: rows of each class; one without rows gets none.

    Shares are rounded by the largest remainder, the first of equal ones first.
    """
    powers = {"natural": 1.0, "sqrt": 0.5, "balanced": 0.0}
    weights = np.where(counts > 0, counts.astype(np.float64) ** powers[sampling], 0.0)
    exact = weights / weights.sum() * total
    found = np.floor(exact).astype(np.int64)
    missing = total - int(found.sum())
    found[np.argsort(found - exact, kind="stable")[:missing]] += 1
    return np.asarray(found, dtype=np.int64)


def _in_turn(members: Ints, start: int, count: int, key: int) -> Ints:
    """The places from `start` on in an endless row of permutations of the members."""
    if not count:
        return members[:0]
    size = len(members)
    first, last = start // size, (start + count - 1) // size
    endless = np.concatenate(
        [members[generator(stream_key(key, turn)).permutation(size)] for turn in range(first, last + 1)]
    )
    return np.asarray(endless[start - first * size :][:count], dtype=np.int64)
