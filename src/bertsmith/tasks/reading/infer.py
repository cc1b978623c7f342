"""Which task rows are made for, and where its parts stand: by the names and the contents of their columns.

What is not clear is refused, with the candidates, and never guessed. A few rows that do not fit what the others are
made for change nothing: who reads them names them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.reading.cells import START_END, choices_in, plain
from bertsmith.tasks.reading.labels import MOST_DIGITS, class_name, place_of_letter
from bertsmith.tasks.reading.records import NUMBERED_CHOICES, Columns, columns_of
from bertsmith.tasks.reading.shapes import LISTS, Shape, is_missing
from bertsmith.tasks.reading.table import Table
from bertsmith.tasks.reading.texts import LABELS, TEXTS, Found, kind_of_labels, text_and_label, the_text, two_texts

AUTO = "auto"
_TAGS = ("ner_tags", "ner", "labels", "label")
_EMBED = "embed"
_CHOICE = re.compile(r"(ending|choice|option|answer|alternative|candidate|response|sol)s?[_ -]?([0-9]|[a-h])")
_BEGINNINGS = (("sent1", "sent2"), ("context", "question"), ("passage", "question"), ("article", "question"))
_BEFORE_CHOICES = ("context", "ctx", "prompt", "premise", "question", "startphrase", "stem", "goal", "query")
_RIGHT = ("answer", "answerkey", "gold_label", "gold", "correct", "target", "answer_index")


@dataclass(frozen=True)
class Inferred:
    """kind: of task. columns: those given, with what was found in the place of what the rows lack. reasons: in words, a
    line each."""

    kind: str
    columns: Columns
    reasons: list[str]


def infer(rows: Sequence[Mapping[str, Any]], columns: Columns, where: str, kind: str = AUTO) -> Inferred:
    """The kind of task that labelled rows are made for, unless one is named, and the columns of its parts.

    Columns that the rows have under the names in `columns` are kept. where: the file, for messages. Raises
    BertsmithError with the candidates where it is not clear.
    """
    table = Table(rows, columns, where)
    _check_header(table)
    for name, (find, needs) in _KINDS.items():
        if kind not in (name, AUTO):
            continue
        if (found := find(table)) is not None:
            return _inferred(table, name, found, [] if kind == name else [f"task: {name} ({found.what})"])
        if kind == name:
            raise table.refusal(f"{name} needs {needs}; there are", table.shapes, *sum(_WAYS[name], ()))
    if kind == _EMBED:
        return _inferred(table, kind, two_texts(table), [])
    found = text_and_label(table)
    if kind != AUTO:
        return _inferred(table, kind, found, [])
    choices, (label, _) = _choices(table)[0], found.columns["label"]
    letters = table.shapes[label].counts if choices and {choices, label} <= table.shapes.keys() else ()
    if {"A", "a"}.intersection(letters) and all(place_of_letter(each.upper()) is not None for each in letters):
        fix = "write the number of a choice, from 0, or its letter, from A; or name the task classify"
        raise table.refusal("the labels look like letters of choices", [choices, label], "label", fix=fix)
    kind, reason = kind_of_labels(table, label)
    return _inferred(table, kind, found, [f"task: {kind} ({reason})"])


def _inferred(table: Table, kind: str, found: Found, reasons: list[str]) -> Inferred:
    names: dict[str, Any] = {}
    for part, (name, why) in found.columns.items():
        names[part] = name
        if name != getattr(table.columns, part):
            reasons.append(f"{part} is column '{name}' ({why})")
    return Inferred(kind, replace(table.columns, **names), reasons)


def _check_header(table: Table) -> None:
    """Raises BertsmithError where a name stands among the values of its own column, and no other name is a usual one:
    so it is where there is no header. A text or a label may have a class that is called so."""
    usual = {*(each.name for each in fields(Columns)), *_TAGS, *_BEFORE_CHOICES, *_RIGHT}
    values = [name for name, shape in table.shapes.items() if shape.counts.get(name.strip(), 0) > 1]
    has_names = table.usual({*TEXTS, *LABELS}) or {*table.usual(usual)} - {*values}
    if values and table.columns.header and not has_names:
        what = f"the first line looks like a row, not like names: '{values[0]}' is a value of its own column, too"
        fix = "add a line with names, or --columns.no-header; columns are then 1, 2, 3 and so on"
        raise BertsmithError(what, table.where, fix)


def _tag(table: Table) -> Found | None:
    """Words with tags, or a text with spans."""
    words = table.named("tokens", ("words",), "words", "text")
    if table.holds(words, "objects"):  # with offsets, as Prodigy has them beside a text
        words = None
    words, tags = _lists_of_one_length(table) if words is None else (words, _tags(table, words))
    if words is not None and tags is not None and _are_of_one_length(table, words, tags):
        what = f"as many tags as words in the rows of '{words}' and '{tags}'"
        return Found({"tokens": (words, "of one length"), "tags": (tags, "of one length")}, what)
    spans = table.named("spans", ("entities", "label"), "objects")
    if spans is None or not _are_spans(table, spans):
        return None
    text = the_text(table, but=(spans,))
    return Found({"text": text, "spans": (spans, "begins, ends and types")}, f"spans in '{spans}'")


def _tags(table: Table, words: str) -> str | None:
    """The column with as many tags as words."""
    own = table.own("tags")
    usual = [name for name in table.usual(_TAGS, *LISTS, "text") if _are_of_one_length(table, words, name)]
    if own is None and len(usual) > 1:
        raise table.refusal("several columns may be the tags", usual, "tags")
    return own or next(iter(usual), None)


def _lists_of_one_length(table: Table) -> tuple[str | None, str | None]:
    """The only two columns of lists, if their lengths differ from row to row, as sentences' do."""
    lists = [name for name in table.shapes if table.holds(name, *LISTS)]
    if len(lists) != 2 or not table.holds(lists[0], "words"):
        return None, None
    cells = [row.get(lists[0], ()) for row in table.head]
    lengths = {0 if is_missing(cell) else len(cell) for cell in cells}
    return (lists[0], lists[1]) if len(lengths) > 1 else (None, None)


def _are_of_one_length(table: Table, words: str, tags: str) -> bool:
    """In most rows; all are tagged words where the user named both columns."""

    def length(value: Any) -> int:
        value = value.split() if isinstance(value, str) else value
        return len(value) if isinstance(value, Sequence) else -1

    of_both = ((length(row.get(words)), length(row.get(tags))) for row in table.head)
    given = table.columns.tokens == words != Columns.tokens and table.columns.tags == tags != Columns.tags
    return given or table.most((one == other != -1 for one, other in of_both), "tokens", "tags")


def _are_spans(table: Table, name: str) -> bool:
    """Whether most that a column lists are objects with a start and an end, or three values each. Where all lists are
    empty beside a label, as Prodigy writes them, rows have that label alone."""
    values = (plain(row.get(name)) for row in table.head)
    cells = [value for value in values if not is_missing(value) and value]
    return (not cells and table.own("label") in (None, name)) or table.most(map(_holds_spans, cells), "spans")


def _holds_spans(cell: Any) -> bool:
    return isinstance(cell, list | tuple) and all(
        any(set(names) <= each.keys() for names in START_END)
        if isinstance(each, Mapping)
        else isinstance(each, list | tuple) and len(each) == 3
        for each in cell
    )


def _qa(table: Table) -> Found | None:
    """Questions with the places of their answers in a context."""
    question, answers = table.named("question", ("query",), "text"), table.own("answers")
    if answers is None and question is not None:
        answers = next(iter(table.usual(("answer",))), None)
    if question is None or answers is None:
        return None
    context = table.named("context", ("passage", "paragraph", "document", "text"), "text")
    if context is None or not _are_answers(table, answers, context):
        return None
    names = {"question": question, "context": context, "answers": answers}
    why = "the usual name of it"
    return Found({part: (name, why) for part, name in names.items()}, f"'{answers}' quotes '{context}'")


def _are_answers(table: Table, answers: str, context: str) -> bool:
    """Whether most rows with answers have one that their context holds; or all columns of a question have their own
    names, and the answers are no choices, nor a few words that are the same in many rows."""
    shape = table.shapes[answers]
    own = table.own("question") is not None and (table.own("context"), table.own("answers")) == (context, answers)
    if own and not _choices(table)[0] and shape.holds not in ("number", "yes or no", "nothing"):
        return shape.holds != "text" or 2 * len(shape.counts) > shape.filled
    listed = [(_answer_texts(row.get(answers)), str(row.get(context))) for row in table.head]
    answered = [any(text in whole for text in texts) for texts, whole in listed if texts]
    return 2 * sum(answered) > len(answered) or (not answered and table.holds(answers, "nothing", *LISTS))


def _answer_texts(value: Any) -> list[str]:
    """Of one text, a list of them, SQuAD's objects, or an object of lists."""
    value = value.get("text") if isinstance(value, Mapping) else value
    if isinstance(value, str):
        return [value] if value else []
    texts = value if isinstance(value, list | tuple) else []
    return [str(each.get("text")) if isinstance(each, Mapping) else str(each) for each in texts]


def _choice(table: Table) -> Found | None:
    """What comes next, or answers: one of several."""
    choices, several = _choices(table)
    label = table.named("label", _RIGHT, "number", "text") if choices and not table.several("label") else None
    if label is None or not table.most(_is_right(row, choices, several, row.get(label)) for row in table.head):
        return None
    found = {"choices": (choices, f"{several} texts a row"), "label": (label, "a usual name")}
    what, text = "several choices a row", table.own("text")
    for first, second in _BEGINNINGS if text is None else ():
        both = [*table.usual((first,), "text"), *table.usual((second,), "text")]
        if len(both) == 2:
            return Found(found | {"text": (both[0], "usual names"), "text_b": (both[1], "usual names")}, what)
    text = text or table.named("text", _BEFORE_CHOICES, "text", fits=Shape.varies)
    return None if text is None else Found(found | {"text": (text, "a usual name")}, what)


def _is_right(row: Mapping[str, Any], choices: str, several: int, label: Any) -> bool:
    """Whether a label may be that of one of several choices: its name in the row, its number, from 0 or from 1, its
    letter, or its text."""
    texts, names = _choices_of(row, choices)
    name = class_name(str(label).strip())
    if name.isdecimal() and name not in names:
        return len(name) <= MOST_DIGITS and int(name) <= several
    place = place_of_letter(name)
    return name in names or name in texts or (place is not None and place < several)


def _choices_of(row: Mapping[str, Any], choices: str) -> tuple[list[str], list[str]]:
    """(The texts of the choices of a row, what the row calls them)."""
    if choices in row:
        listed, names = choices_in(row[choices]) or ([], [])
    else:
        # Of the usual numbered columns `_choices` says only how many they are: a row has at most 100.
        numbered = ([f"{stem}{number}" for number in range(100)] for stem in NUMBERED_CHOICES)
        usual = next((columns for columns in numbered if columns[0] in row), [])
        listed, names = [row.get(each) for each in (choices.split(",") if "," in choices else usual)], []
    return [str(each).strip() for each in listed if each is not None], names


def _choices(table: Table) -> tuple[str, int]:
    """(The column of lists, or several columns joined by commas, how many choices that are); ("", 0) for none."""
    own = table.columns.choices
    if "," in own and all(name in table.shapes for name in own.split(",")):
        return own, len(own.split(","))
    listed = table.named("choices", ("options", "endings"), "words")
    if listed is not None:
        return listed, max((len(_choices_of(row, listed)[0]) for row in table.rows), default=0)
    stems: dict[str, dict[str, str]] = {}
    for name, shape in table.shapes.items():
        found = _CHOICE.fullmatch(name.strip().lower())
        if found and shape.filled:
            stems.setdefault(found[1], {})[found[2]] = name
    several = {stem: names for stem, names in stems.items() if len(names) > 1}
    if len(several) != 1:
        return "", 0
    names = next(iter(several.values()))
    columns = [names[place] for place in sorted(names)]
    numbered = [[f"{stem}{number}" for number in range(len(columns))] for stem in NUMBERED_CHOICES]
    # These are read without being named, so that other rows may have more of them, fewer, or a list.
    usual = own == Columns.choices and columns in numbered
    return own if usual else ",".join(columns), len(columns)


_KINDS: dict[str, tuple[Callable[[Table], Found | None], str]] = {
    "tag": (_tag, "a column of words and one of as many tags, or a text and one of spans"),
    "qa": (_qa, "columns of a question, of a context, and of answers that quote it"),
    "choice": (_choice, "a column that lists choices, or one for each, a text before them, and a label"),
}
# What rows of each kind must have, in the fields of `Columns`; of several ways, one.
_WAYS = {
    "classify": (("text", "label"),),
    "regress": (("text", "label"),),
    "tag": (("tokens", "tags"), ("text", "spans")),
    "qa": (("question", "context", "answers"),),
    "choice": (("text", "choices", "label"),),
    _EMBED: (("text", "text_b"),),
}


def has_columns(row: Mapping[str, Any], columns: Columns, kind: str) -> bool:
    """Whether a row has all that a kind of task needs under the names in `columns`."""
    return any(all(set(columns_of(getattr(columns, part), row)) <= row.keys() for part in way) for way in _WAYS[kind])
