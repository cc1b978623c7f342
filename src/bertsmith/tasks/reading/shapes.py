"""What the columns of rows hold, as far as that can be seen: texts, names, numbers, lists."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Holds = Literal["nothing", "text", "number", "yes or no", "words", "numbers", "objects", "object", "different things"]
LISTS: tuple[Holds, ...] = ("words", "numbers")
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
# "#1 ID", "pairID", "row_id", "uuid"; not "valid". An address may also be what is to be judged.
_ID_NAME = re.compile(r"(?:^|[\W_])(?i:ids?|idx|index|guid|uuid|uid|key|hash)$|[a-z]I[Dd]$")
_FILE = re.compile(r"[\w./\\-]+\.[A-Za-z]\w{1,4}")  # of a path, without the colon of an address
_URL_NAME, _URL = re.compile(r"(?:^|[\W_])(?i:url)$"), re.compile("https?://")
_IDS_DIFFER_IN = 4  # characters, as row-9 and row-10000
_FEWEST_WORDS, _FEWEST_CHARACTERS = 3.0, 15.0
_LEAST_DISTINCT = 0.2
_SHOWN, _SHOWN_CHARACTERS = 3, 24


@dataclass(frozen=True)
class Shape:
    """A column. rows: of the table. filled: those with a value. words, characters: of its texts, on average. counts:
    of its values, as text."""

    name: str
    holds: Holds
    rows: int
    filled: int
    words: float
    characters: float
    counts: Mapping[str, int]

    @property
    def is_id(self) -> bool:
        """Whether it only tells rows apart: by its name, or because all its values are different and one word each."""
        if _ID_NAME.search(self.name) or _URL_NAME.search(self.name) or all(map(_URL.match, self.counts)):
            return True
        if self.filled < 3 or len(self.counts) < self.filled or self.holds not in ("text", "number"):
            return False
        if self.holds == "number":
            numbers = [float(value) for value in self.counts]
            return all(each.is_integer() for each in numbers) and numbers == sorted(numbers)
        return self.words == 1 and all(any(each.isdigit() for each in value) for value in self.counts)

    def varies(self) -> bool:
        """Whether it has many different values, as texts and not as classes."""
        return len(self.counts) > _LEAST_DISTINCT * self.filled

    @property
    def differs_in_length(self) -> bool:
        """Whether its values differ in their length by more than ids do, and it is no id by its name nor of files."""
        lengths = [len(value) for value in self.counts] or [0]
        are_ids = _ID_NAME.search(self.name) or all(map(_FILE.fullmatch, self.counts))
        return max(lengths) - min(lengths) > _IDS_DIFFER_IN and not are_ids

    @property
    def is_free_text(self) -> bool:
        """Whether it looks like sentences, and not like names of a few things."""
        long = self.words >= _FEWEST_WORDS or (self.words < 1.5 and self.characters >= _FEWEST_CHARACTERS)
        differ = len(self.counts) > max(1, _LEAST_DISTINCT * self.filled) or self.rows == 1
        return self.holds == "text" and long and differ and not self.is_id

    def described(self) -> str:
        """Its name and first values, for a message."""
        shown = [
            each if len(each) <= _SHOWN_CHARACTERS else each[: _SHOWN_CHARACTERS - 3] + "..." for each in self.counts
        ]
        more = ", ..." if len(shown) > _SHOWN else ""
        return f"'{self.name}' ({', '.join(shown[:_SHOWN])}{more})" if shown else f"'{self.name}' (empty)"


def shapes_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Shape]:
    """Of every column, in the order of the first rows that have it."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: _shape(name, [row.get(name) for row in rows]) for name in names}


def _shape(name: str, values: Sequence[Any]) -> Shape:
    present = [value for value in values if not is_missing(value) and not (isinstance(value, list) and not value)]
    texts = [value for value in present if isinstance(value, str)]
    kinds = {_held(value) for value in present}
    if kinds == {"number", "yes or no"}:
        kinds = {"different things"}
    elif kinds == {"number", "text"}:
        kinds = {"text"}
    held: Holds = kinds.pop() if len(kinds) == 1 else "different things" if kinds else "nothing"
    return Shape(
        name,
        held,
        len(values),
        len(present),
        sum(len(text.split()) for text in texts) / max(1, len(texts)),
        sum(len(text) for text in texts) / max(1, len(texts)),
        Counter(
            value.strip() if isinstance(value, str) else json.dumps(value, default=str, skipkeys=True)
            for value in present
        ),
    )


def is_missing(cell: Any) -> bool:
    """Whether a cell has nothing in it: in a table of pandas that is NaN, NA or NaT, which are not all comparable."""
    missing = cell is None or type(cell).__name__ in ("NAType", "NaTType")
    return missing or (math.isnan(cell) if isinstance(cell, float) else isinstance(cell, str) and not cell)


def is_number(text: str) -> bool:
    """Whether a text is a number in ASCII digits."""
    return _NUMBER.fullmatch(text) is not None


def _held(value: Any) -> Holds:
    if isinstance(value, bool):
        return "yes or no"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "number" if is_number(value.strip()) else "text"
    if isinstance(value, Mapping):
        return "object"
    if isinstance(value, Sequence):
        if all(isinstance(each, str) for each in value):
            return "words"
        return "numbers" if all(isinstance(each, int) for each in value) else "objects"
    return "different things"
