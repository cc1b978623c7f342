"""The columns of rows, looked up by the parts of a task that they may hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.reading.cells import with_values
from bertsmith.tasks.reading.records import Columns, columns_of
from bertsmith.tasks.reading.shapes import Shape, shapes_of

CLOSELY_READ = 1000
_SHOWN = 12


class Table:
    """Rows with the names that the user gave to columns. Their contents are judged by the first rows.

    shapes: what each column holds. where: the file, for messages.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], columns: Columns, where: str) -> None:
        self.rows, self.columns, self.where = with_values(rows, CLOSELY_READ), columns, where
        self.head = self.rows[:CLOSELY_READ]
        self.shapes = shapes_of(self.head)
        self._by_folded: dict[str, list[str]] = {}
        for name in self.shapes:
            self._by_folded.setdefault(folded(name), []).append(name)

    def own(self, part: str) -> str | None:
        """The column that the user named for a part, or the one with its default name, perhaps in other letters. Raises
        BertsmithError where the user's is not there."""
        name: str = getattr(self.columns, part)
        if name in self.shapes:
            return name
        if name != getattr(Columns, part):
            raise self.refusal(f"there is no column '{name}'; there are", self.shapes, part)
        alike = self._by_folded.get(name, [])
        return alike[0] if len(alike) == 1 else None

    def several(self, part: str) -> list[str]:
        """The columns that the user joined by commas for a part; [] where it is one, or they are not all there."""
        names = columns_of(getattr(self.columns, part), self.shapes)
        return names if len(names) > 1 and all(name in self.shapes for name in names) else []

    def most(self, rows_fit: Iterable[bool], *parts: str) -> bool:
        """Whether so many of the first rows fit that the others are bad rows of the same kind: three quarters, or half
        where the columns of all these parts have the names that were given or are usual."""
        fit = list(rows_fit)
        named = bool(parts) and all(getattr(self.columns, part) in self.shapes for part in parts)
        return 4 * sum(fit) >= (2 if named else 3) * len(fit) > 0

    def usual(self, names: Iterable[str], *kinds: str) -> list[str]:
        """The columns with one of these names, whatever their case and marks, that hold one of the kinds."""
        found = [name for each in names for name in self._by_folded.get(each, ())]
        return [name for name in found if self.shapes[name].filled and self.holds(name, *kinds)]

    def named(
        self, part: str, names: Iterable[str], *kinds: str, fits: Callable[[Shape], bool] | None = None
    ) -> str | None:
        """`own`, or else the only one of `usual`, of several the one that fits. Raises BertsmithError where there are
        several."""
        own = self.own(part)
        found = [own] if own is not None else self.usual(names, *kinds)
        if fits is not None and len(found) > 1:
            found = [name for name in found if fits(self.shapes[name])] or found
        if len(found) > 1:
            raise self.refusal(f"several columns may be the {part.replace('_', ' ')}", found, part)
        return found[0] if found else None

    def holds(self, name: str | None, *kinds: str) -> bool:
        """Whether a column is there and holds one of the kinds; of none, anything."""
        return name is not None and (not kinds or self.shapes[name].holds in kinds)

    def refusal(self, what: str, names: Iterable[str], part: str, *more: str, fix: str = "") -> BertsmithError:
        """An error that lists columns, and says with which flags they are named."""
        listed = list(names)
        lines = [f"\n    {self.shapes[name].described()}" for name in listed[:_SHOWN]]
        lines += [f"\n    and {len(listed) - _SHOWN} more"] if len(listed) > _SHOWN else []
        flags = " and ".join(f"--columns.{each.replace('_', '-')}" for each in (part, *more))
        return BertsmithError(f"{what}:{''.join(lines)}", self.where, fix or f"name the right one with {flags}")


def folded(name: str) -> str:
    """A name without what its case and marks add to it."""
    return re.sub(r"\W+", "_", name.strip().lower()).strip("_")
