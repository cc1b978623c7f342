"""Rows drawn again: bootstrap intervals of any metric, and folds for what is fitted on rows and measured on others.

Legend: N rows, K figures, R resamples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.base.streams import generator, stream_key

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RESAMPLES = 1000
CONFIDENCE = 0.95
FOLDS = 5
# Numbers of resamples that are worked on at once: more leave the cache, fewer are calls of numpy above all.
AT_ONCE = 1 << 16


@dataclass(frozen=True)
class Figures:
    """Named metrics as a function of how often each row counts.

    of: float64[..., K] for weights float64[..., N], in the order of the names; NaN where a metric is undefined.
    """

    names: tuple[str, ...]
    of: Callable[[Floats], Floats]

    def values(self, rows: int) -> dict[str, float]:
        """Of all rows, each once."""
        return dict(zip(self.names, self.of(np.ones(rows)).tolist(), strict=True))

    def only(self, names: Sequence[str]) -> Figures:
        """Some of them."""
        places = [self.names.index(name) for name in names]
        return Figures(tuple(names), lambda weights: self.of(weights)[..., places])

    def and_also(self, other: Figures) -> Figures:
        """These and others of the same rows."""
        return Figures(
            (*self.names, *other.names), lambda weights: np.concatenate((self.of(weights), other.of(weights)), axis=-1)
        )


@dataclass(frozen=True)
class Interval:
    """A metric of all rows and its bootstrap interval; undefined: the share of resamples in which it does not exist."""

    value: float
    low: float
    high: float
    undefined: float = 0.0


def numbered(values: Sequence[Any] | NDArray[Any]) -> Ints:
    """Equal values as equal numbers, from 0 in the order in which they first appear: int64[N]."""
    places: dict[Any, int] = {}
    return np.array([places.setdefault(value, len(places)) for value in values], dtype=np.int64)


def intervals(
    figures: Figures,
    rows: int,
    groups: Sequence[Any] | NDArray[Any] | None = None,
    *,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> dict[str, Interval]:
    """The 95% percentile bootstrap interval of every figure (Efron and Tibshirani, 1993, chapter 13).

    rows: N, at least 1. groups: of each row, where rows of a group are not independent; whole groups are drawn then.
    Where a figure is biased, such as a macro F1 over many rare classes, the percentiles may lie on one side of the
    figure itself; the interval is then widened to contain it. The same arguments give the same intervals.
    """
    unit = np.arange(rows) if groups is None else numbered(groups)
    units = int(unit.max()) + 1
    draws = generator(stream_key(seed, "bootstrap"))
    whole = figures.of(np.ones(rows))
    found = np.empty((resamples, len(figures.names)))
    at_once = max(1, AT_ONCE // max(rows, len(figures.names)))
    for first in range(0, resamples, at_once):
        drawn = draws.integers(0, units, size=(min(at_once, resamples - first), units))
        times = sums_at(drawn, np.ones(drawn.shape), units)
        found[first : first + at_once] = figures.of(times if groups is None else times.take(unit, axis=1))
    return {name: _interval(float(whole[place]), found[:, place]) for place, name in enumerate(figures.names)}


def sums_at(places: Ints, weights: Floats, count: int) -> Floats:
    """The sum of the weights at each place from 0 to `count` - 1: float64[..., count].

    weights: float64[..., N]. places: int64[..., N], or int64[N] for all resamples.
    """
    before = weights.shape[:-1]
    shift = np.arange(math.prod(before), dtype=np.int64).reshape(*before, 1) * count
    sums = np.bincount((places + shift).ravel(), weights.ravel(), math.prod(before) * count)
    return sums.astype(np.float64, copy=False).reshape(*before, count)  # without any place they are whole numbers


def weighted_means(values: Floats, weights: Floats) -> Floats:
    """float64[...] of values and weights float64[..., N]."""
    # A dot product has other last bits by another number of threads, which wait for each other on a busy machine.
    return np.asarray((values * weights).sum(-1) / weights.sum(-1), dtype=np.float64)


def _interval(value: float, resampled: Floats) -> Interval:
    known = resampled[~np.isnan(resampled)]
    undefined = 1 - len(known) / len(resampled)
    if np.isnan(value) or not len(known):
        return Interval(value, value, value, undefined)
    low, high = np.quantile(known, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Interval(value, min(float(low), value), max(float(high), value), undefined)


def folds_of(rows: int, groups: Sequence[Any] | NDArray[Any] | None = None) -> Ints:
    """A fold from 0 to `FOLDS` - 1 for each row, of even sizes in rows or, where there are groups, in groups; all rows
    of a group are in one fold. int64[N]; fewer folds where there are fewer rows or groups."""
    unit = np.arange(rows) if groups is None else numbered(groups)
    units = int(unit.max()) + 1 if rows else 0
    order = generator(stream_key(0, "folds")).permutation(units)
    fold = np.empty(units, dtype=np.int64)
    fold[order] = np.arange(units) % FOLDS
    return np.asarray(fold[unit], dtype=np.int64)


def mean_figures(names: Sequence[str], values: NDArray[Any], among: NDArray[np.bool_] | None = None) -> Figures:
    """Figures that are means over rows, such as the exact match of questions; values: [N, K]. among: bool[N], the rows
    that they are means over, if not all."""
    table = np.array(values.T, dtype=np.float64, order="C")

    def of(weights: Floats) -> Floats:
        weights = weights if among is None else weights * among
        defined = weights.any(-1, keepdims=True)
        means = weighted_means(table, np.where(defined, weights, 1.0)[..., None, :])
        return np.where(defined, means, np.nan)

    return Figures(tuple(names), of)
