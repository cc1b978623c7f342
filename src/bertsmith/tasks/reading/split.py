"""Labelled rows divided into train and dev: by class, by group, and the same way every time.

Rows are dealt one by one, and at no point of the file has a class a whole row more or less in dev than its share, as in
ordered pivotal sampling (Chauvet 2012, "On a characterization of ordered pivotal sampling"). So rows that are appended
move none of the earlier ones to the other side, unless groups were named, which are dealt by their size, or labels are
what `strata` ranks: numbers, and several a row.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted
from bertsmith.base.streams import stream_key, uniform

_BINS = 5


@dataclass(frozen=True)
class Split:
    """Places of rows, ascending. only_train: rows of each class that dev has none of."""

    train: list[int]
    dev: list[int]
    only_train: dict[str, int]


def split(classes: Sequence[Hashable], units: Sequence[Hashable], share: float, seed: int, grouped: bool) -> Split:
    """Divides rows so that about `share` of every class goes to dev, and rows of one unit to one side.

    classes, units: of each row. A unit is a text, whose first row counts and which the others follow; or with `grouped`
    a group that the user named, or the text of rows without one, of which every row counts. Groups are dealt from large
    to small, so that the small ones even out what the large ones left. Every class has a row in train. Equal arguments
    give an equal split. Raises BertsmithError where no row can go to dev.
    """
    if not 0 < share < 1:
        fix = "use a share between 0 and 1, such as 0.1"
        raise BertsmithError(f"dev_share is {share}", "fine-tuning settings", fix)
    members: dict[Hashable, list[int]] = defaultdict(list)
    for place, unit in enumerate(units):
        members[unit].append(place)
    held = [places if grouped else places[:1] for places in members.values()]
    draws = uniform(stream_key(seed, "dev share"), np.arange(len(members), dtype=np.uint64)).tolist()
    order = list(range(len(members)))
    if grouped:
        order.sort(key=lambda unit: (-len(held[unit]).bit_length(), draws[unit]))
    deal = _Deal(share, Counter(classes[place] for places in held for place in places))
    taken = {unit for unit in order if deal.takes([classes[place] for place in held[unit]], draws[unit])}
    if not grouped:
        _give_back(taken, list(members.values()), classes)
    if not taken:
        _refuse([[classes[place] for place in places] for places in held], len(classes), share, grouped)
    sides = [False] * len(classes)
    for unit, places in enumerate(members.values()):
        for place in places:
            sides[place] = unit in taken
    dev = [place for place, is_dev in enumerate(sides) if is_dev]
    train = [place for place, is_dev in enumerate(sides) if not is_dev]
    missing = {classes[place] for place in train} - {classes[place] for place in dev}
    counts = Counter(str(classes[place]) for place in train if classes[place] in missing)
    return Split(train, dev, dict(counts.most_common()))


def _give_back(taken: set[int], members: Sequence[Sequence[int]], classes: Sequence[Hashable]) -> None:
    """Takes back to train a text that a class would otherwise be without: one that comes with several labels."""
    in_train = {classes[place] for unit, places in enumerate(members) if unit not in taken for place in places}
    for unit in sorted(taken):
        held = {classes[place] for place in members[unit]}
        if not held <= in_train:
            taken.remove(unit)
            in_train |= held


class _Deal:
    """Decides unit by unit. Shares are held as whole numbers: `_part` of `_whole`."""

    def __init__(self, share: float, totals: Mapping[Hashable, int]) -> None:
        exact = Fraction(str(share))
        self._part, self._whole, self._totals = exact.numerator, exact.denominator, totals
        self._all = sum(totals.values())
        self._seen: Counter[Hashable] = Counter()
        self._dev: Counter[Hashable] = Counter()
        self._seen_all = self._dev_all = 0

    def takes(self, classes: Sequence[Hashable], draw: float) -> bool:
        """Whether a unit with rows of these classes goes to dev. draw: its random number in [0, 1)."""
        rows = Counter(classes)
        taken = self._decide(rows, draw)
        self._seen.update(rows)
        self._seen_all += len(classes)
        if taken:
            self._dev.update(rows)
            self._dev_all += len(classes)
        return taken

    def _decide(self, rows: Counter[Hashable], draw: float) -> bool:
        if any(self._dev[each] == self._seen[each] for each in rows):
            return False  # train has no row of this class yet
        ends = [
            (self._dev[each] * self._whole, count * self._whole, (self._seen[each] + count) * self._part)
            for each, count in rows.items()
        ]
        may = all(dev + more < due + self._whole for dev, more, due in ends)
        must = any(dev + self._whole <= due for dev, _, due in ends)
        if not must:
            return may and draw < self._chance(rows)
        return may or self._gain(rows) > 0

    def _chance(self, rows: Counter[Hashable]) -> float:
        """Of a unit that both sides are open to. All rows of a class have the same, as far as each is a unit."""
        if rows.total() > 1:
            return self._part / self._whole
        each = next(iter(rows))
        before, rest = divmod(self._seen[each] * self._part, self._whole)
        if self._dev[each] == before:
            return self._part / (self._whole - rest)
        return (rest + self._part - self._whole) / rest

    def _gain(self, rows: Counter[Hashable]) -> float:
        """How much nearer dev comes to its shares by a unit, as parts of the classes and of all rows."""
        found = [(self._dev[each], count, self._seen[each], self._totals[each]) for each, count in rows.items()]
        found.append((self._dev_all, rows.total(), self._seen_all, self._all))
        gain = 0.0
        for dev, count, seen, total in found:
            due = (seen + count) * self._part / self._whole
            gain += (abs(dev - due) - abs(dev + count - due)) / total
        return gain


def are_numbers(labels: Sequence[Any]) -> bool:
    """Whether labels are numbers to predict, and not classes."""
    return bool(labels) and all(isinstance(label, float) for label in labels)


def strata(labels: Sequence[Any]) -> list[Hashable]:
    """What rows are balanced by: the label; of several labels, or spans with labels, the rarest; of anything else that
    is listed, whether there is any; of `are_numbers`, the fifth of all rows that it falls into, called by the lowest
    and the highest number that this has."""
    if are_numbers(labels):
        values = np.asarray(labels, dtype=np.float64)
        edges = np.quantile(values, np.arange(1, _BINS) / _BINS)
        fifths = np.searchsorted(edges, values, side="right")
        inside = {fifth: values[fifths == fifth] for fifth in set(fifths.tolist())}
        names = {fifth: f"{those.min():.10g} to {those.max():.10g}" for fifth, those in inside.items()}
        return [names[fifth] for fifth in fifths.tolist()]
    plain = [
        _listed(label) if isinstance(label, Collection) and not isinstance(label, str) else label for label in labels
    ]
    counts = Counter(each for names in plain if isinstance(names, frozenset) for each in names)
    return [
        min(each, key=lambda name: (counts[name], name), default="none") if isinstance(each, frozenset) else each
        for each in plain
    ]


def _listed(label: Collection[Any]) -> Hashable:
    """The different names in a label that is a list."""
    names = [each if isinstance(each, str) else getattr(each, "label", None) for each in label]
    return frozenset(map(str, names)) if all(names) else "some" if label else "none"


def _refuse(units: Sequence[Sequence[Hashable]], rows: int, share: float, grouped: bool) -> None:
    """units: the classes of the rows of each that count."""
    held = counted(len(units), "group" if grouped else "different text")
    what = f"no row can go to dev: a share of {share} of {counted(rows, 'row')}, of {held}"
    of_class = Counter(each for classes in units for each in set(classes))
    some_may = any(all(of_class[each] > 1 for each in classes) for classes in units)
    several = f"give several {'groups' if grouped else 'texts'}{' of a label' if len(units) > 1 else ''}"
    fix = "use a larger share, give more rows" if some_may else several
    raise BertsmithError(what, "dev_share", f"{fix}, or name a file of dev rows")
