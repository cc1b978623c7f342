"""Labels as rows give them, made into the names of classes."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.log import counted, warn
from bertsmith.rows.squad import TRUTHS
from bertsmith.tasks.reading.cells import found_in, plain
from bertsmith.tasks.reading.shapes import is_number

MOST_CLASSES = 100
_FEWEST_ROWS = 10  # of each on average, where there are more classes
MOST_DIGITS = 640
"""Of a whole number. Python converts so many whatever its limit is set to."""
# Of ASCII digits and without leading zeros: 007 and 7 may be two classes.
_WHOLE = re.compile(r"[+]?(?P<number>-?(0|[1-9][0-9]*))(\.0*)?")
_LETTER = re.compile("[A-Z]")
_ROWS_TO_TELL_IDS = 10
# As R, databases, Python, pandas, Excel, SNLI's files and Weka write it; "none" in small letters is more often a class.
_MISSING = frozenset(("NA", "N/A", "NULL", "null", "None", "<NA>", "#N/A", "-", "?"))
_NO_WORDS = ("N/A", "NULL", "null", "<NA>", "#N/A")
_SHOWN = 4
_SEPARATORS = "|;,/"
_FEELINGS = 3  # -1, 0 and 1, of which -1 is bad
_FRACTION = re.compile(r"[+-]?[0-9]*\.[0-9]+")


def label_text(value: Any) -> str:
    """A label as text, without white space around it. ValueError says why a value is no label."""
    value = plain(value)
    if isinstance(value, list | dict):
        raise ValueError(f"the label is {json.dumps(value, default=str, skipkeys=True)[:60]}; a row has one label")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"the label is {value}, which is not a finite number")
    if not isinstance(value, str | int | float):
        raise ValueError(f"the label is of type {type(value).__name__}; use a text or a number")
    text = value.strip() if isinstance(value, str) else json.dumps(value)
    if text.lower() == "nan":
        raise ValueError(f"the label is '{text}', which stands for a missing value; write it out if it is a class")
    if len(text) > MOST_DIGITS and (whole := _WHOLE.fullmatch(text)) and len(whole["number"]) > MOST_DIGITS:
        raise ValueError(f"the label is a number of {len(whole['number']):,} digits, and {MOST_DIGITS} are the most")
    return text


def number_of(label: str) -> float:
    """The number that a label is. ValueError for one that is none, or not finite."""
    try:
        number = float(label.replace("_", " "))  # Python takes 1_000 for a thousand
    except ValueError:
        raise ValueError(f"the label '{label}' is not a number such as 1234.5") from None
    if not math.isfinite(number):
        raise ValueError(f"the label '{label}' is not a finite number")
    return number


def several_labels(value: Any, separator: str = "") -> list[Any] | None:
    """The labels of a row that may have any number: a list's, or the parts of a text where something separates them,
    none for an empty cell. None where the value is a single label."""
    value = plain(value)
    if isinstance(value, list | tuple):
        return list(value)
    if not separator or not isinstance(value, str | None):
        return None
    return [part for part in (value or "").split(separator) if part.strip()]


def marked_labels(row: Mapping[str, Any], columns: Sequence[str]) -> list[str]:
    """The columns of a row that hold 1, true or yes, out of those that stand for a label each. ValueError where one is
    not there, or holds neither that nor 0, false or no."""
    if absent := next((each for each in columns if each not in row), None):
        raise ValueError(f"no column '{absent}'; {found_in(row)}; name the column of labels with --columns.label")
    held = {each: "" if row[each] is None else class_name(label_text(row[each])).lower() for each in columns}
    if wrong := next((each for each, value in held.items() if value not in TRUTHS), None):
        raise ValueError(f"column '{wrong}' holds '{held[wrong]}'; a column that stands for a label has 1 or 0")
    return [each for each, value in held.items() if TRUTHS[value]]


def class_name(label: str) -> str:
    """The class of a label: 1, 1.0 and +1 are one, as are 0 and -0.0."""
    whole = _WHOLE.fullmatch(label)
    number = whole["number"] if whole else label
    return "0" if number == "-0" else number


def place_of_letter(label: str) -> int | None:
    """0 for "A", 1 for "B" and so on; None for what is no capital letter."""
    return ord(label) - ord("A") if _LETTER.fullmatch(label) else None


def class_names(labels: Iterable[str], where: str, many: bool, given: str | None = None) -> list[str]:
    """The classes of training labels, by value if all are whole numbers, else in alphabetical order, or as given.

    labels: of all rows. many: whether the user said that many classes or numbers with fractions are meant. given: the
    classes in the order wanted, joined by commas; one that no training row has is warned of. Raises BertsmithError
    where there are fewer than two, where one is not `given`, and where the labels look like numbers to predict, or are
    many and rare, and `many` is not set.
    """
    counts = Counter(map(class_name, labels))
    names = set(counts)
    if len(names) < 2:
        what = f"a classifier needs two labels, and these rows have {counted(len(names), 'label')}"
        raise BertsmithError(what, where, "check --columns.label")
    if given is not None:
        return _ordered(names, where, given)
    fractions = sorted(name for name in names if _FRACTION.fullmatch(name))
    if not many and (fractions or (len(names) > MOST_CLASSES and counts.total() < _FEWEST_ROWS * len(names))):
        found = f"numbers with fractions, such as {fractions[0]}" if fractions else f"{len(names):,} different labels"
        fix = "check --columns.label; if they really are classes, add --many-labels"
        raise BertsmithError(f"the labels are {found}, which do not look like classes", where, fix)
    warn_of_alike(names)
    _warn_of_truths(names)
    if missing := _that_may_be_missing(names):
        what = "may stand for a missing value; if so, leave out its rows, else name all with --labels"
        warn(f"the label {' or '.join(map(repr, missing))} {what}", of_all_ranks=True)
    numbers = all(_WHOLE.fullmatch(name) for name in names)
    return sorted(names, key=(lambda name: (int(name), name)) if numbers else None)


def _that_may_be_missing(names: set[str]) -> list[str]:
    """The classes that are written as programs write a missing value, and not as most classes are: NA among yes and no,
    but not among EU and AS, nor None among Mild and Severe; NULL and the like whatever the others are."""
    if len(names) > _FEELINGS and names == {str(number - 1) for number in range(len(names))}:
        return ["-1"]
    forms, others = Counter(map(_form, names)), {name.lower() for name in names - _MISSING}
    by_form = not others <= TRUTHS.keys()  # NULL, TRUE and FALSE are written alike
    return [
        name
        for name in sorted(names & _MISSING)
        if name in _NO_WORDS or not by_form or 2 * forms[_form(name)] <= len(names)
    ]


def _form(name: str) -> str:
    """How a name is written: its capitals, whether small letters are behind them, and its marks."""
    return re.sub(r"[^\w\s]", "-", re.sub("[A-Z]", "A", re.sub("(?<=[A-Z])[a-z]+", "a", name)))


def warn_of_joined(names: Collection[str]) -> None:
    """Names a class that may be several labels in one cell, and what would separate them."""
    if mark := next((each for each in _SEPARATORS if _are_joined(names, each)), None):
        joined = min(name for name in names if mark in name)
        what = f"labels such as '{joined}' are classes of their own"
        warn(f"{what}; if they are several, joined: --columns.label-separator '{mark}'", of_all_ranks=True)


def _are_joined(names: Collection[str], mark: str) -> bool:
    """Whether some classes hold a mark, and all that stands between the marks is found in other classes, too, a part of
    it at another place where marks may part levels: in Men/Shoes, Men/Shirts and Women/Shoes each has names of its own.
    """
    parts = [[part.strip() for part in name.split(mark)] for name in names]
    counts = Counter(part for each in parts for part in set(each))
    placed = {(part, place) for each in parts for place, part in enumerate(each)}
    joined = [each for each in parts if len(each) > 1]
    are_levels = mark in "/," and len(placed) == len(counts)
    return bool(joined) and not are_levels and all(counts[part] > 1 for each in joined for part in each)


def warn_of_alike(names: Iterable[str]) -> None:
    """Names classes, or types of entities, that a person would take for one."""
    alike: dict[str, list[str]] = {}
    for name in sorted(names):
        words = unicodedata.normalize("NFKC", name).casefold().split()
        seen = "".join(each for each in " ".join(words) if unicodedata.category(each) not in ("Cc", "Cf"))
        alike.setdefault(seen, []).append(name)
    found = [" and ".join(map(repr, those)) for those in alike.values() if len(those) > 1]
    if found:
        more = f"; and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
        what = "labels that differ by case, white space, unseen characters or Unicode form alone"
        named = f"{', '.join(found[:_SHOWN])}{more}"
        warn(f"{what} are classes of their own: {named}; write them alike if they mean the same", of_all_ranks=True)


def _warn_of_truths(names: Iterable[str]) -> None:
    """Names classes such as true and 1, as rows of two programs have them."""
    written: dict[bool, list[str]] = {}
    for name in sorted(names):
        if (truth := TRUTHS.get(name.lower())) is not None:
            written.setdefault(truth, []).append(name)
    if found := [" and ".join(map(repr, those)) for those in written.values() if len(set(map(str.lower, those))) > 1]:
        what = f"the labels {', and '.join(found)} are classes of their own"
        warn(f"{what}; write them alike if they mean the same", of_all_ranks=True)


def refuse_ids(labels: Sequence[str], where: str) -> None:
    """Raises BertsmithError where each of ten or more rows has a label of its own: then nothing is learned of any."""
    if len(labels) >= _ROWS_TO_TELL_IDS and len(set(map(class_name, labels))) == len(labels):
        what = f"each of the {len(labels):,} training rows has a label of its own, such as '{labels[0]}', like an id"
        numbers = "; to predict amounts, name the task regress" if all(map(is_number, labels)) else ""
        fix = "name the column of the classes with --columns.label; if these really are classes, add --many-labels"
        raise BertsmithError(what, where, fix + numbers)


def _ordered(names: set[str], where: str, given: str) -> list[str]:
    ordered = [class_name(each.strip()) for each in given.split(",")]
    if len(ordered) < 2 or len(set(ordered)) < len(ordered):
        what = f"the classes '{given}' are not two or more different ones"
        raise BertsmithError(what, "labels", "join them by commas")
    stray = sorted(names - set(ordered))
    if stray:
        raise BertsmithError(f"the label '{stray[0]}' is not one of {given}", where, nearest(stray[0], ordered))
    absent = [each for each in ordered if each not in names]
    if absent:
        warn(f"no training row has the label {', '.join(absent)}", of_all_ranks=True)
    return ordered
