"""Rows of pairs of like texts: what one must have, what a step must know of equal ones, and what is refused.

Legend: N rows, K texts of a row: 2, or 3 where one of them has an unlike text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say
from bertsmith.tasks.embedding.ranking import NO_TEXT
from bertsmith.tasks.reading.labels import number_of
from bertsmith.tasks.reading.overlap import text_key
from bertsmith.tasks.reading.records import Columns, Record, Row, RowReader, id_of, label_of, row_of, text_of
from bertsmith.tasks.reading.shapes import is_missing, is_number
from bertsmith.tasks.reading.table import folded
from bertsmith.tasks.reading.texts import SIMILARITIES


@dataclass(frozen=True)
class PairRecord(Record):
    """text_b: what is like the text; None for a text by itself. negative: what is not. label: how alike the two are, a
    float; None where the row does not say."""

    negative: str | None = None

    @property
    def every_text(self) -> tuple[str | None, str | None, str | None]:
        """All three."""
        return self.text, self.text_b, self.negative


def pair_of(row: Row | str, columns: Columns, where: str) -> PairRecord:
    """A row to learn from or to measure on as a record, which is a pair. ValueError says what is wrong."""
    row = row_of(row, columns.text)
    text, second = text_of(row, columns.text), text_of(row, columns.text_b)
    negative = text_of(row, columns.negative) if not is_missing(row.get(columns.negative)) else None
    if negative is not None and text_key([negative]) in (text_key([text]), text_key([second])):
        raise ValueError(f"column '{columns.negative}' holds one of the two texts that are alike")
    try:
        score = number_of(label_of(row, columns.label)) if not is_missing(row.get(columns.label)) else None
    except ValueError as error:
        raise ValueError(f"{error}; a label of embed says how alike the two texts are") from error
    if score is None:
        _check_no_score(row, columns)
    return PairRecord(text, second, score, where, id_of(row, columns), negative=negative)


def _check_no_score(row: Row, columns: Columns) -> None:
    """ValueError for a number that may say how alike the texts are, in a column that has no part in the record."""
    used = RowReader.used(columns)
    for name in map(str, row):
        if name not in used and folded(name) in SIMILARITIES and is_number(str(row.get(name)).strip()):
            what = f"column '{name}' may say how alike the two texts are, and is not read"
            raise ValueError(f"{what}: name it with --columns.label '{name}', or remove it")


def check_alike(records: Sequence[Record]) -> None:
    """Raises BertsmithError where training rows cannot all be taken for pairs of like texts, or are only one."""
    other = next((each for each in records if each.label != records[0].label), None)
    if other is not None:
        what = "the training rows have different labels, and embed takes every one of them for a pair of like texts"
        fix = "keep the rows whose texts are alike, and leave out the column of the label"
        raise BertsmithError(what, other.where, fix)
    if records[0].label is not None:
        say("the labels of the training rows are all the same and are not used: every row is a pair of like texts")
    if len(records) < 2:
        raise BertsmithError("one pair has no other to tell it from", records[0].where, "give more training rows")


def are_scored(records: Sequence[Record]) -> bool:
    """Whether rows have scores, which are not all the same. Raises BertsmithError where only some have one."""
    first = records[0].label
    other = next((each for each in records if (each.label is None) != (first is None)), None)
    if other is not None:
        has, others = ("no score", "have one") if first is not None else ("a score", "have none")
        what = f"this row has {has}, and those before it {others}"
        raise BertsmithError(what, other.where, "give every row of the file a score, or none of them")
    return any(each.label != first for each in records)


def text_numbers(records: Sequence[Record]) -> NDArray[np.int64]:
    """A number for each text of each row, int64[N, K]: equal where texts are, but for case and white space."""
    places: dict[bytes, int] = {}
    rows = []
    for record in records:
        assert isinstance(record, PairRecord)
        keys = [None if text is None else text_key([text]) for text in record.every_text]
        rows.append([NO_TEXT if key is None else places.setdefault(key, len(places)) for key in keys])
    found = np.array(rows, dtype=np.int64)
    return found if (found[:, 2] != NO_TEXT).any() else found[:, :2]
