"""Lists and objects in the cells of tables, which hold texts alone: there they are JSON."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from bertsmith.base.log import first_of
from bertsmith.rows.json_lines import RepeatedKey, each_once

# What numpy writes around the values of an array, and what stands between two of them.
_ARRAY = re.compile(r"\barray\((?=\[)|(?<=\])(, dtype=\w+)?\)")
_GAP = re.compile(r"(?<=['\"\d\]}])\s+(?=['\"\d\[{-])")
_ESCAPE = re.compile(r"\\.", re.DOTALL)
START_END = (("start", "end"), ("start_offset", "end_offset"))
"""What marked spans call their first character and the one behind their last: the second as doccano writes them."""
_MOST_SHOWN = 40  # columns of a row: tables of measurements have thousands
_LONGEST_SHOWN = 1 << 14
"""Characters of a cell that Python's parser is given: it takes half a KB of memory for each, and a server's rows come
here too."""


def found_in(row: Mapping[Any, Any]) -> str:
    """The columns of a row, for a message about one that it lacks."""
    return f"found: {first_of(map(str, row), _MOST_SHOWN) or 'none'}"


def name_one(*fields: str) -> str:
    """The fix for a row that has none of the columns which these fields of `Columns` name."""
    flags = " or ".join(f"--columns.{each.replace('_', '-')}" for each in fields)
    return f"name one with {flags}, in Python Columns({'=..., '.join(fields)}=...)"


class LacksColumn(ValueError):
    """A row has none of the columns that a part of it may stand in. fields: of `Columns`."""

    def __init__(self, what: str, row: Mapping[Any, Any], *fields: str) -> None:
        super().__init__(f"{what}; {found_in(row)}")
        self.fix = name_one(*fields)


def listed_in(cell: Any, column: str, *kinds: type) -> Any:
    """What a cell has where a list or an object is wanted. A text that holds one as JSON is that, any other one stays,
    and so does a list without a part of these kinds, if kinds are given: a text may begin like JSON. ValueError for one
    as Python shows it, and for an object with a key twice."""
    try:
        held = held_as_json(cell)
    except RepeatedKey as error:
        raise ValueError(f"column '{column}' holds an object that has the key '{error}' twice") from error
    shown = shown_by_python(cell) if held is None else None
    found = held if shown is None else shown
    if isinstance(found, list) and found and kinds and not any(isinstance(each, kinds) for each in found):
        found = None
    if found is None:
        return cell
    if shown is not None:
        raise ValueError(f"column '{column}' holds a list or an object as Python shows it; write it as JSON")
    return held


def plain(cell: Any) -> Any:
    """A cell of Python's own types: arrays and numbers of numpy, as in tables of pandas, become lists and numbers."""
    return cell.tolist() if hasattr(cell, "tolist") else cell


def choices_in(cell: Any) -> tuple[list[Any], list[str]] | None:
    """(The choices of a cell, what they are called) of a list, or as ARC has them {"text": [...], "label": ["A", ...]}:
    in a list they have no names. None for anything else."""
    parts: tuple[Any, Any] = (cell.get("text"), cell.get("label")) if isinstance(cell, Mapping) else (cell, [])
    texts, names = map(plain, parts)
    if isinstance(texts, str) or not isinstance(texts, Sequence) or not isinstance(names, Sequence):
        return None
    return list(texts), list(map(str, names))


def held_as_json(cell: Any) -> list[Any] | dict[str, Any] | None:
    """The list or the object that a text holds as JSON; None for anything else. Raises RepeatedKey."""
    if not isinstance(cell, str) or not cell.lstrip().startswith(("[", "{")):
        return None
    try:
        found: list[Any] | dict[str, Any] = json.loads(cell, object_pairs_hook=each_once)
    except RepeatedKey:
        raise
    except (ValueError, RecursionError):
        return None
    return found


def shown_by_python(cell: Any) -> list[Any] | dict[Any, Any] | None:
    """A guess at the list or the object whose `repr`, by Python or numpy, a text is: its parts and their types are
    right, and texts among them only about right. None for anything else."""
    if not isinstance(cell, str) or not cell.lstrip().startswith(("[", "{", "array(")):
        return None
    if len(cell) > _LONGEST_SHOWN:
        return None
    plain = _ESCAPE.sub("x", _GAP.sub(", ", _ARRAY.sub("", cell.strip())))
    try:
        found = ast.literal_eval(plain)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return found if isinstance(found, list | dict) else None


def with_values(rows: Sequence[Mapping[str, Any]], first: int) -> Sequence[Mapping[str, Any]]:
    """Rows with lists and objects in place of the texts that hold or show them, and of what numpy has for them, to
    judge columns by; in the columns where at least half of the texts of the first rows do. first: how many these are.
    """
    cells: dict[str, list[Any]] = {}
    for row in rows[:first]:
        for name, cell in row.items():
            if (isinstance(cell, str) and cell) or hasattr(cell, "tolist"):
                cells.setdefault(name, []).append(cell)
    listed = [name for name, those in cells.items() if 2 * sum(_in(each) is not each for each in those) >= len(those)]
    if not listed:
        return rows
    return [{**row, **{name: _in(row[name]) for name in listed if name in row}} for row in rows]


def _in(cell: Any) -> Any:
    """What a cell holds or shows, or the cell."""
    try:
        held = held_as_json(cell)
    except RepeatedKey:  # told when the row is read
        return cell
    held = shown_by_python(cell) if held is None else held
    return plain(cell) if held is None else held
