"""Rows of questions as records: the question is the text, its context the second one, the label its gold answers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted, say, warn
from bertsmith.rows.squad import is_true
from bertsmith.tasks.answering.gold import Gold, fault_of, located
from bertsmith.tasks.answering.passages import Words
from bertsmith.tasks.answering.windows import Windows
from bertsmith.tasks.reading.bad_rows import Report, listed, pass_over
from bertsmith.tasks.reading.cells import listed_in
from bertsmith.tasks.reading.records import Columns, Record, Row, id_of, text_of
from bertsmith.tasks.reading.shapes import is_missing

IMPOSSIBLE, START = "is_impossible", "answer_start"


def question_of(row: Row | str, columns: Columns, labelled: bool, where: str) -> Record:
    """A row as a record; its label is a tuple of `Gold`, empty where the context does not answer the question.

    Answers are SQuAD's objects {"text", "answer_start"}, texts, the object of lists that other libraries write
    ({"text": [...], "answer_start": [...]}), any of these as JSON in the cell of a table, or texts with the column
    `answer_start`; a start that is missing or below 0 is not known. ValueError says what is wrong with a row.
    """
    if not isinstance(row, Mapping):
        raise ValueError("this row is no mapping; give one with the columns of the question and of its context")
    question, context = text_of(row, columns.question), text_of(row, columns.context)
    golds = None
    if labelled:
        impossible = bool(is_true(row.get(IMPOSSIBLE), IMPOSSIBLE))
        golds = tuple(_gold(text, start) for text, start in _answers(row, columns.answers, impossible))
        if golds and impossible:
            raise ValueError(f"column '{IMPOSSIBLE}' is true, and column '{columns.answers}' has an answer")
    return Record(question, context, golds, where, id_of(row, columns))


def _answers(row: Row, column: str, impossible: bool) -> list[tuple[Any, Any]]:
    """(text, start) of each answer as the row has them."""
    value = listed_in(row.get(column), column, str, dict)
    if is_missing(value):
        if not impossible and not isinstance(value, str):
            raise ValueError(f"no answers in column '{column}'; a question without an answer has an empty list")
        return []
    if isinstance(value, str):
        return [(value, row.get(START))]
    if isinstance(value, Mapping) and isinstance(value.get("text"), str):
        value = [value]
    objects = [each for each in (value if isinstance(value, Sequence) else [value]) if isinstance(each, Mapping)]
    if any("start" in each and START not in each for each in objects):
        raise ValueError(f"column '{column}' has the place of an answer as 'start'; it is read as '{START}'")
    if isinstance(value, Sequence) and value and not objects and not is_missing(row.get(START)):
        starts = listed_in(row[START], START)
        value = {"text": value, START: [starts] if isinstance(starts, int | float | str) else starts}
    if isinstance(value, Mapping):
        try:
            texts, starts = (list(value.get(name, ())) for name in ("text", START))
        except TypeError:
            raise ValueError(f"column '{column}' holds an object without lists of texts and of starts") from None
        if starts and len(starts) != len(texts):
            raise ValueError(f"column '{column}' has {counted(len(texts), 'text')} and {counted(len(starts), 'start')}")
        return list(zip(texts, starts or [None] * len(texts), strict=True))
    if not isinstance(value, Sequence):
        raise ValueError(f"column '{column}' holds no answers; give a text, or a list of texts or of SQuAD's objects")
    return [(each.get("text"), each.get(START)) if isinstance(each, Mapping) else (each, None) for each in value]


def _gold(text: Any, start: Any) -> Gold:
    if not isinstance(text, str) or not text.strip():
        what = "an empty text" if isinstance(text, str) else f"of type {type(text).__name__}"
        raise ValueError(f"an answer is {what}; a question without an answer has an empty list")
    if start is None or (isinstance(start, str) and not start):
        return Gold(text)
    try:
        place = float(start)
    except (OverflowError, TypeError, ValueError):
        place = math.nan
    if not place.is_integer():
        raise ValueError(f"answer_start is {start!r}, not a whole number")
    return Gold(text, int(place))


def learnable(records: Sequence[Record], report: Report = pass_over) -> list[Record]:
    """The records to learn from, each with one answer whose place is known, or with none.

    Of several answers the first is taken. A record whose answer is not where it says, or not in its context, is left
    out, as in run_squad.py. Says how many there are of each. report: is given those that are left out.
    """
    words: dict[str, Words] = {}
    kept: list[Record] = []
    faults: dict[str, list[str]] = {}
    counts: Counter[str] = Counter()
    for record in records:
        if not record.label:
            kept.append(record)
            continue
        context = record.text_b or ""
        if context not in words:
            words[context] = Words.of(context)
        gold, places = located(context, record.label[0])
        if fault := fault_of(words[context], gold):
            faults.setdefault(fault, []).append(_named(record))
            report(BertsmithError(fault, record.where), _row(record))
            continue
        counts["several answers, of which the first is learned"] += len(record.label) > 1
        counts["an answer without a start, found in the context"] += places > 0
        counts["such an answer at several places, of which the first is taken"] += places > 1
        kept.append(replace(record, label=(gold,)))
    for fault, names in faults.items():
        what = f"{len(names):,} of {len(records):,} questions are not learned, because {fault}"
        warn(listed(what, names), of_all_ranks=True)
    for what, count in counts.items():
        if count:
            say(f"train: {counted(count, 'question')} with {what}")
    return kept


def _named(record: Record) -> str:
    return record.where if record.id is None else f"{record.where} (id {record.id})"


def _row(record: Record) -> dict[str, Any]:
    """In SQuAD's layout, without the paragraph around it."""
    answers = [{"text": gold.text, START: gold.start} for gold in record.label]
    return {"id": record.id, "question": record.text, "context": record.text_b, "answers": answers}


def doubts(records: Sequence[Record], windows: Windows, unanswerable: bool) -> list[str]:
    """What may be wrong with labelled questions, in words. unanswerable: whether the model may give no answer."""
    lines = []
    asked = zip(records, windows.answers, strict=True)
    lost = [_named(record) for record, answer in asked if record.label and answer is None]
    if lost:
        where = "in the context, or not where it should start"
        what = f"{len(lost):,} of {len(records):,} questions have a first answer that is not {where}"
        lines.append(listed(what, lost))
    none = sum(not record.label for record in records)
    if none and not unanswerable:
        lines.append(f"{none:,} of {len(records):,} questions have no answer, and this model always gives one")
    names = Counter(record.id for record in records if record.id is not None)
    twice = [name for name, count in names.items() if count > 1]
    if twice:
        fix = "the places of their rows tell them apart"
        lines.append(f"{counted(len(twice), 'id')} at several questions, such as {twice[0]}; {fix}")
    return lines
