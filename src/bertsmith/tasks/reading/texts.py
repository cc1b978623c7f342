"""Which columns hold the text, or the pair of texts, and the label; and what kind of labels these are."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted
from bertsmith.rows.squad import TRUTHS
from bertsmith.tasks.reading.labels import MOST_CLASSES, class_name
from bertsmith.tasks.reading.records import Columns
from bertsmith.tasks.reading.shapes import LISTS, Shape, is_number, shapes_of
from bertsmith.tasks.reading.table import Table, folded

TEXTS = (
    "text", "sentence", "review", "review_text", "reviewtext", "content", "body", "comment", "comment_text", "message",
    "utterance", "document", "tweet", "post", "article", "abstract", "phrase", "query", "question", "input",
)  # fmt: skip
_PAIRS = (
    ("premise", "hypothesis"), ("question", "sentence"), ("question", "context"), ("question", "passage"),
    ("question", "answer"), ("query", "passage"), ("query", "document"), ("claim", "evidence"),
    ("anchor", "positive"), ("query", "positive"),
)  # fmt: skip
LABELS = (
    "labels", "gold_label", "class", "category", "target", "sentiment", "intent", "emotion", "topic", "polarity",
    "tags", "is_duplicate", "quality", "score", "stars", "star_rating", "rating", "similarity", "similarity_score",
    "answer", "accept",
)  # fmt: skip
_NUMBERED_LABELS = ("class_index",)
"""Of what another column may have by its name."""
_VERDICTS = {"accept", "reject", "ignore"}
SIMILARITIES = ("score", "similarity", "similarity_score")
_FIRST = {"1": "2", "a": "b", "A": "B"}
_THIRD = {"1": "3", "a": "c", "A": "C"}
_USUAL, _DEFAULT = "a usual name of it", "its default name"
# Whole numbers with more values than this may be classes or amounts.
_MOST_NUMBERED = 20
_TAG = re.compile(r"O|[BILUESMW]-\S+")
_WITH_COMMA = re.compile(r"[+-]?[0-9]+,[0-9]+")
# 1,370 or 0.5, with a currency before or behind it, or in percent.
_AMOUNT = re.compile(r"[+-]?[$€£¥]? ?([0-9]{1,3}(,[0-9]{3})+|[0-9]+)(\.[0-9]+)? ?[$€£¥%]?")


@dataclass(frozen=True)
class Found:
    """columns: by the fields of `Columns`, each with why, in words. what: all of them together show."""

    columns: Mapping[str, tuple[str, str]]
    what: str = ""


def text_and_label(table: Table) -> Found:
    """The text or the two texts, and the label. Raises BertsmithError where several columns may be one of them."""
    several = table.several("label")
    label = table.columns.label if several else table.named("label", LABELS, fits=_is_no_verdict)
    label = label or table.named("label", _NUMBERED_LABELS)
    columns = _texts(table, several or (() if label is None else (label,)))
    texts = [name for name, _ in columns.values()]
    if label in texts:
        raise table.refusal("one column may be a text or the label", [label], "text", "label")
    return Found(columns | {"label": _label_by_shape(table, texts) if label is None else (label, _USUAL)})


def two_texts(table: Table) -> Found:
    """The two texts of rows that need no label, and how alike they are, where a column says so. Raises BertsmithError
    where there are not two, or several may be one of them."""
    columns = _texts(table, (*table.usual(LABELS, "number"), table.columns.negative))
    if "text_b" not in columns:
        raise table.refusal("no two columns look like a pair of texts; there are", table.shapes, "text", "text_b")
    is_named = table.columns.label != Columns.label  # then it may be in other files alone
    label = None if is_named else table.named("label", SIMILARITIES, "number")
    return Found(columns if label is None else columns | {"label": (label, _USUAL)})


def the_text(table: Table, but: Collection[str]) -> tuple[str, str]:
    """(The only column of texts, why). but: columns that are something else. Raises BertsmithError where several may be
    it."""
    own = table.own("text")
    if own is not None:
        return own, _DEFAULT
    usual = [name for name in table.usual(TEXTS, "text") if name not in but]
    found = usual + [name for name, shape in table.shapes.items() if shape.is_free_text and name not in (*but, *usual)]
    if len(found) == 1:
        return found[0], _USUAL if usual else "the only one with sentences"
    if found:
        raise table.refusal("several columns may be the text", found, "text", "text_b")
    # Words and names; and then what has no spaces and a digit in every cell, as addresses, formulas, some Chinese.
    those = [
        shape
        for name, shape in table.shapes.items()
        if shape.holds == "text" and name not in but and 2 * len(shape.counts) > shape.filled
    ]
    short = [each.name for each in those if not each.is_id] or [each.name for each in those if each.differs_in_length]
    if len(short) != 1:
        raise table.refusal("no column looks like the text; there are", table.shapes, "text")
    return short[0], "the only one with many different texts"


def kind_of_labels(table: Table, label: str) -> tuple[str, str]:
    """(kind of task, reason), by all labels."""
    if several := table.several("label"):
        return "classify", f"any number of labels a row, each a column: {', '.join(several)}"
    shape = shapes_of([{label: row.get(label)} for row in table.rows])[label]
    count = len({class_name(value) for value in shape.counts})
    numbers = {value: rows for value, rows in shape.counts.items() if is_number(value)}
    if shape.holds in LISTS:
        return "classify", f"a list of labels in every row of '{label}'"
    if table.columns.label_separator:
        return "classify", f"any number of labels in every row of '{label}'"
    if shape.holds in ("object", "objects", "nothing"):
        raise table.refusal("this column holds no labels", [label], "label")
    texts_of = [name for name in table.shapes if name in shape.counts and name != label and table.holds(name, "text")]
    if len(texts_of) == len(shape.counts) > 1:
        named = ",".join(texts_of)
        fix = f"name the task choice with --columns.choices {named}, or the task classify"
        raise table.refusal("the labels are names of other columns, as of choices", [label], "label", fix=fix)
    if "O" in shape.counts and len(shape.counts) > 1 and all(map(_TAG.fullmatch, shape.counts)):
        fix = "give a row for each sentence, with columns of its words and of their tags; or name the task classify"
        raise table.refusal("the labels look like tags of words, and a row like a word", [label], "label", fix=fix)
    if all(_WITH_COMMA.fullmatch(value) for value in shape.counts):
        what = "the labels look like numbers with a decimal comma"
        raise table.refusal(what, [label], "label", fix="write them with a point, or name the task classify")
    amounts = all(value in numbers or _AMOUNT.fullmatch(value) for value in shape.counts)
    if amounts and len(numbers) < len(shape.counts) and count > _MOST_NUMBERED:
        what = "the labels look like amounts with a currency, in percent or with commas between thousands"
        raise table.refusal(what, [label], "label", fix="write them as plain numbers, or name the task classify")
    if 4 * sum(numbers.values()) < 3 * shape.filled or shape.holds not in ("number", "text"):
        return "classify", f"{counted(count, 'different label')} in '{label}'"
    if not all(float(value).is_integer() for value in numbers):
        return "regress", f"numbers with fractions in '{label}'"
    if count > _MOST_NUMBERED:
        what = f"{count:,} different whole numbers may be classes, or amounts to predict"
        fix = "name the task, classify or regress; or, if these are ids, another column with --columns.label"
        raise table.refusal(what, [label], "label", fix=fix)
    regress = "; the task regress predicts amounts" if count > 2 else ""
    what = counted(count, f"different {'whole number' if shape.holds == 'number' else 'label'}")
    mostly = "" if shape.holds == "number" else ", most of them whole numbers,"
    return "classify", f"{what}{mostly} in '{label}'{regress}"


def _is_no_verdict(shape: Shape) -> bool:
    """Whether it is not Prodigy's "answer", on the labels that are in "accept"."""
    return not _VERDICTS.issuperset(shape.counts)


def _texts(table: Table, but: Collection[str]) -> dict[str, tuple[str, str]]:
    own, second = table.own("text"), table.own("text_b")
    found = {} if second is None else {"text_b": (second, _DEFAULT)}
    if own is not None:
        return {"text": (own, _DEFAULT)} | found
    pairs = list(_pairs(table, but)) if second is None else []
    if len(pairs) > 1:
        raise table.refusal("several pairs of columns may be the two texts", sum(pairs, ()), "text", "text_b")
    if pairs:
        is_usual = tuple(map(folded, pairs[0])) in _PAIRS
        usual = [] if is_usual else [name for name in table.usual(TEXTS, "text") if table.shapes[name].varies()]
        if others := [name for name in usual if name not in (*pairs[0], *but)]:
            raise table.refusal("several columns may be the texts", [*pairs[0], *others], "text", "text_b")
        why = "the names of a pair"
        return {part: (name, why) for part, name in zip(("text", "text_b"), pairs[0], strict=True)}
    return {"text": the_text(table, (*but, *([] if second is None else [second])))} | found


def _pairs(table: Table, but: Collection[str]) -> Iterator[tuple[str, str]]:
    """Columns of texts whose names are those of a pair: words that go together, or 1 and 2, or a and b."""
    for first, second in _PAIRS:
        for one in table.usual((first,), "text"):
            yield from ((one, other) for other in table.usual((second,), "text") if not {one, other} & set(but))
    texts = {name for name, shape in table.shapes.items() if _may_be_one_of_two(table, name) and name not in but}
    for name in [each for each in table.shapes if each in texts]:
        for place, mark in enumerate(name):
            second, third = (name[:place] + marks.get(mark, "") + name[place + 1 :] for marks in (_FIRST, _THIRD))
            if mark in _FIRST and second in texts:
                if third in texts:
                    flags = "--columns.text and --columns.text-b"
                    fix = f"name the right ones with {flags}; of multiple choice, name the task choice and its columns"
                    raise table.refusal("there are more than two texts", [name, second, third], "text", fix=fix)
                yield name, second


def _may_be_one_of_two(table: Table, name: str) -> bool:
    shape = table.shapes[name]
    return shape.holds == "text" and not shape.is_id and shape.varies()


def _label_by_shape(table: Table, but: Collection[str]) -> tuple[str, str]:
    """The only column with few different values, or with numbers."""
    found = []
    for name, shape in table.shapes.items():
        few = 2 * len(shape.counts) <= shape.filled and len(shape.counts) <= MOST_CLASSES
        fits = shape.holds in ("number", "words") or (shape.holds in ("text", "yes or no") and few)
        if (
            fits
            and name not in but
            and not shape.is_id
            and len(shape.counts) > 1
            and 10 * shape.filled >= 9 * shape.rows
        ):
            found.append(name)
    if found == [""]:
        raise table.refusal("the column that may be the label has no name", found, "label", fix="give it one")
    if len(found) == 1:
        return found[0], "the only one with few different values, or with numbers"
    rest = [name for name in table.shapes if name not in but]
    pairs = "pairs of texts that belong together need none: name the task embed" if len(but) == 2 else ""
    if not rest:
        fix = "give rows with a text and a label"
        what = f"there is no column for the label beside {' and '.join(map(repr, but))}"
        raise BertsmithError(what, table.where, f"{fix}; {pairs}" if pairs else fix)
    if found:
        marked = [name for name in rest if table.shapes[name].counts.keys() <= TRUTHS.keys()]
        several = f"; or all labels of a row, each a column, with --columns.label {','.join(marked)}"
        fix = "name the right one with --columns.label" + (several if len(marked) > 1 else "")
        raise table.refusal("several columns may be the label", found, "label", fix=fix)
    fix = f"name the right one with --columns.label; {pairs}" if pairs else ""
    raise table.refusal("no column looks like the label; there are", rest, "label", fix=fix)
