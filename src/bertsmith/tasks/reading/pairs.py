"""Whether rows are pairs of texts: the training rows decide by their majority, and the others are bad rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.reading.bad_rows import BadRow, SkippedRows, leave_out_or_refuse
from bertsmith.tasks.reading.records import Record


def are_pairs(records: Sequence[Record]) -> bool:
    """Whether most of the records have two texts."""
    return 2 * sum(record.text_b is not None for record in records) > len(records)


def check_pairs(records: Sequence[Record], pairs: bool) -> None:
    """Raises BertsmithError at the first record that has one text where two are wanted, or two where one is."""
    for record in records:
        if (record.text_b is not None) != pairs:
            raise _fault(record)


def with_as_many_texts(records: Sequence[Record], pairs: bool, skipped: SkippedRows | None, name: str) -> list[Record]:
    """The records that have two texts, or without `pairs` one.

    skipped: is given the others; without it, or where they are too many, raises BertsmithError that names them.
    """
    bad: list[BadRow] = [(_fault(each), _row(each)) for each in records if (each.text_b is not None) != pairs]
    good = [each for each in records if (each.text_b is not None) == pairs]
    leave_out_or_refuse(bad, len(good), name, skipped)
    return good


def _fault(record: Record) -> BertsmithError:
    if record.text_b is not None:
        what = "this row has two texts, and the training rows have one"
        fix = "remove the second text, or rename its column"
    else:
        what = "this row has one text, and the training rows have two"
        fix = "add the second text, or name its column with --columns.text-b"
    return BertsmithError(what, record.where, fix)


def _row(record: Record) -> dict[str, Any]:
    return {name: value for name, value in vars(record).items() if name != "where" and value is not None}
