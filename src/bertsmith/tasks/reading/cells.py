"""Lists and objects in the cells of tables, which hold texts alone: there they are JSON."""

from __future__ import annotations

import ast
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

# What numpy writes around the values of an array, and what stands between two of them.
_ARRAY = re.compile(r"\barray\((?=\[)|(?<=\])(, dtype=\w+)?\)")
_GAP = re.compile(r"(?<=['\"\d\]}])\s+(?=['\"\d\[{-])")


def listed_in(cell: Any, column: str, *kinds: type) -> Any:
    """What a cell has where a list or an object is wanted. A text that holds one as JSON is that, any other one stays,
    and so does a list with parts of other kinds, if kinds are given: a text may begin like JSON. ValueError for one as
    Python shows it."""
    held, shown = held_as_json(cell), None
    if held is None:
        shown = shown_by_python(cell)
    found = held if shown is None else shown
    if found is None or (kinds and isinstance(found, list) and not all(isinstance(each, kinds) for each in found)):
        return cell
    if shown is not None:
        raise ValueError(f"column '{column}' holds a list or an object as Python shows it; write it as JSON")
    return held


def held_as_json(cell: Any) -> list[Any] | dict[str, Any] | None:
    """The list or the object that a text holds as JSON; None for anything else."""
    if not isinstance(cell, str) or not cell.lstrip().startswith(("[", "{")):
        return None
    try:
        found: list[Any] | dict[str, Any] = json.loads(cell)
    except (ValueError, RecursionError):
        return None
    return found


def shown_by_python(cell: Any) -> list[Any] | dict[Any, Any] | None:
    """About the list or the object that Python shows by a text, or numpy; None for anything else."""
    if not isinstance(cell, str) or not cell.lstrip().startswith(("[", "{", "array(")):
        return None
    plain = _GAP.sub(", ", _ARRAY.sub("", cell.strip()))
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes that Python does not have
            found = ast.literal_eval(plain)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return found if isinstance(found, list | dict) else None


def with_values(rows: Sequence[Mapping[str, Any]], first: int) -> Sequence[Mapping[str, Any]]:
    """Rows with lists and objects in place of the texts that hold or show them, to judge columns by. first: so many
    rows say which columns have them: those where half of the texts do."""
    cells: dict[str, list[Any]] = {}
    for row in rows[:first]:
        for name, cell in row.items():
            if isinstance(cell, str) and cell:
                cells.setdefault(name, []).append(cell)
    listed = [name for name, those in cells.items() if 2 * sum(_in(each) is not each for each in those) >= len(those)]
    if not listed:
        return rows
    return [{**row, **{name: _in(row[name]) for name in listed if name in row}} for row in rows]


def _in(cell: Any) -> Any:
    """What a cell holds or shows, or the cell."""
    held = held_as_json(cell)
    held = shown_by_python(cell) if held is None else held
    return cell if held is None else held
