"""Lists and objects in the cells of tables: JSON is read, what Python shows is refused, other texts stay the same. Rows
as libraries of tables give them."""

from __future__ import annotations

import csv
import json
import math
import re
from datetime import date
from typing import Any

import numpy as np
import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.embedding.rows import PairRecord
from bertsmith.tasks.kinds.choice import Choice
from bertsmith.tasks.kinds.classify import Classify
from bertsmith.tasks.kinds.embed import Embed
from bertsmith.tasks.kinds.qa import Qa
from bertsmith.tasks.kinds.tag import Tag
from bertsmith.tasks.reading.bad_rows import raise_at_once
from bertsmith.tasks.reading.cells import listed_in
from bertsmith.tasks.reading.files import Form, rows_of
from bertsmith.tasks.reading.infer import infer
from bertsmith.tasks.reading.records import Columns, read_records

LISTS = [["insult", "it's spam"], ["spam"], [], ["insult"]]
ANSWERS = [{"text": ["Rome"], "answer_start": [13]}, {"text": [], "answer_start": []}]
KINDS = {
    "classify": (Classify, {"label": LISTS}),
    "qa": (Qa, {"question": ["Where?", "Why?"], "context": ["Ann lives in Rome."], "answers": ANSWERS}),
    "choice": (Choice, {"choices": [["a house", "it's Rome"], ["Ann", "a cat"]], "label": ["it's Rome", "Ann"]}),
    "tag": (Tag, {"tokens": [["New York", "sleeps"], ["San Marino"]], "tags": [["B-LOC", "O"], ["B-LOC"]]}),
}


def table(kind, path, write=json.dumps):
    """(The reader of a kind, the rows, the same rows read from a csv file whose lists are written so)."""
    reader, columns = KINDS[kind]
    columns = columns if "context" in columns or "tokens" in columns else {"text": None, **columns}
    rows = [
        {name: values[row % len(values)] if values else f"sentence {row} of many" for name, values in columns.items()}
        for row in range(12)
    ]
    with path.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(columns)
        lines.writerows([each if isinstance(each, str) else write(each) for each in row.values()] for row in rows)
    return reader, rows, [row for _, row in rows_of(path, Form(), raise_at_once)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_table_with_json_is_read_as_the_same_rows_of_json_lines(tmp_path, kind):
    reader, rows, read = table(kind, tmp_path / "rows.csv")
    expected = infer(rows, Columns(), "rows")
    found = infer(read, Columns(), "rows")
    assert (found.kind, found) == (kind, expected)
    labels = [[each.label for each in read_records(those, found.columns, reader=reader)] for those in (rows, read)]
    assert labels[0] == labels[1]


@pytest.mark.parametrize("kind", KINDS)
def test_what_python_shows_is_refused_and_not_taken_for_a_text(tmp_path, kind):
    reader, _, read = table(kind, tmp_path / "rows.csv", str)
    found = infer(read, Columns(), "rows")
    assert found.kind == kind
    with pytest.raises(BertsmithError, match="as Python shows it; write it as JSON"):
        read_records(read, found.columns, reader=reader)


@pytest.mark.parametrize(
    "cell",
    [
        "['a']",
        """["it's", 'b']""",
        "['a' 'b']",
        "['a', None]",
        "[ 2 15]",
        "{'text': ['a'], 'answer_start': [3]}",
        "{'text': array(['a', 'b'], dtype=object), 'answer_start': array([3, 4])}",
        "array(['a', 'b'], dtype=object)",
        "[{'start': 1, 'end': 2}\n {'start': 3, 'end': 4}]",
    ],
)
def test_how_python_and_numpy_show_lists_and_objects(cell):
    with pytest.raises(ValueError, match="column 'label' holds a list or an object as Python shows it"):
        listed_in(cell, "label")


@pytest.mark.parametrize(
    "cell",
    [
        "[UNK]",
        "[[Rome]]",
        "[a, b]",
        "['90s music]",
        "[",
        "{x}",
        "[sic] he said ['so']",
        "array",
        "1",
        "",
        None,
        "[" * 5000,
    ],
)
def test_other_texts_stay_as_they_are(cell):
    assert listed_in(cell, "label") == cell


def test_a_list_with_one_part_of_a_kind_is_one_and_with_none_a_text():
    assert listed_in('["EU", 2024]', "tokens", str) == ["EU", 2024], "which is refused by whoever wants words"
    assert listed_in("[ 1 ]", "tokens", str) == "[ 1 ]", "three words"
    with pytest.raises(ValueError, match="as Python shows it"):
        listed_in("['it\\'s', 'a\\\\b', 'a\\d']", "tokens", str)


def test_what_python_shows_is_looked_for_in_short_cells_alone():
    long = "[" + "1," * 100_000 + "]"
    assert listed_in(long, "tokens") == long


def test_an_answer_may_be_an_interval():
    row = {"question": "Which?", "context": "It lies in [0, 1].", "answers": "[0, 1]"}
    assert [gold.text for gold in Qa.record(row, Columns(), True, "row 1").label] == ["[0, 1]"]


def test_a_text_that_is_a_list_does_not_change_what_its_column_holds():
    rows = [{"text": f"sentence {row} of many", "label": "ab"[row % 2]} for row in range(12)]
    for odd in ('["x"]', "['x']", "[]"):
        assert infer([{**rows[0], "text": odd}, *rows[1:]], Columns(), "rows").kind == "classify"


class NAType:
    """As that of pandas: it tells nobody what it is equal to."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        return self

    def __bool__(self) -> bool:
        raise TypeError("boolean value of NA is ambiguous")


class NaTType:
    """As that of pandas: a time that is missing."""


@pytest.mark.parametrize("nothing", [math.nan, NAType(), NaTType()])
def test_rows_as_tables_of_pandas_give_them(nothing: object) -> None:
    """An empty cell is NaN or NA there, and columns without names are numbered."""
    empty = {"text_b": math.nan, "id": math.nan, "group": nothing}
    found = read_records([{"text": "a", "label": 1, **empty}, {"text": "b", "label": 0, "id": 2.0, "group": 3}])
    assert [(each.text_b, each.id, each.group) for each in found] == [(None, None, None), (None, "2.0", "3")]
    rows = [{0: "a", 1: 1}, {0: "b", 1: 0}]
    assert [(each.text, each.label) for each in read_records(rows, Columns("0", label="1"))] == [("a", "1"), ("b", "0")]
    with pytest.raises(BertsmithError, match="no column 'text'") as caught:
        read_records(rows)
    assert caught.value.fix.startswith("found: 0, 1;")
    with pytest.raises(BertsmithError, match="two columns have one name, '0'") as caught:
        read_records([*rows, {0: "a", "0": "b", 1: 0}], Columns("0", label="1"))
    assert caught.value.where == "row 3"
    table = [{"review": f"a word{row} and more", "mood": "ab"[row % 2], "score": nothing} for row in range(12)]
    assert infer(table, Columns(), "rows").columns == Columns("review", label="mood")
    table[3]["mood"] = nothing
    assert infer(table, Columns(), "rows").columns == Columns("review", label="mood")
    like = {"text": "a", "text_b": "b"}
    (found,) = read_records([{**like, "negative": nothing, "label": nothing}], reader=Embed)
    assert isinstance(found, PairRecord)
    assert (found.negative, found.label) == (None, None)
    asked = {"question": "Where?", "context": "Rome."}
    (unanswered,) = read_records([{**asked, "answers": nothing, "is_impossible": True}], reader=Qa)
    assert unanswered.label == ()
    for row, what in (({"answers": nothing}, "no answers"), ({"answers": "Rome", "answer_start": nothing}, "whole")):
        with pytest.raises(BertsmithError, match=what):
            read_records([{**asked, **row}], reader=Qa)


@pytest.mark.parametrize("nothing", [math.nan, NAType(), NaTType()])
def test_an_empty_cell_of_pandas_does_not_change_what_a_column_of_lists_is(nothing: object) -> None:
    marked = [{"text": f"Ann met {row} of us", "spans": [[0, 3, "PER"]]} for row in range(3)]
    empty = [{"text": f"nobody met {row} of us", "spans": nothing} for row in range(3)]
    assert infer([*marked, *empty], Columns(), "rows").kind == "tag"
    words = [{"w": ["Ann", "sleeps"][:row], "t": ["B-PER", "O"][:row]} for row in (1, 2, 1, 2)]
    assert infer([*words, {"w": nothing, "t": nothing}], Columns(), "rows").columns == Columns(tokens="w", tags="t")


@pytest.mark.parametrize(
    ("label", "shown"), [([date(2026, 1, 1)], '["2026-01-01"]'), ({(1, 2): 3, "a": 1}, '{"a": 1}')]
)
def test_what_json_has_no_type_for_is_named_as_no_label(label: object, shown: str) -> None:
    rows = [{"text": "a", "label": label}]
    with pytest.raises(BertsmithError, match=re.escape(f"the label is {shown}; a row has one label")):
        read_records(rows)
    with pytest.raises(BertsmithError, match="label"):
        infer(rows, Columns(), "rows")


def test_the_task_of_rows_with_arrays_of_numpy() -> None:
    """As pandas gives those of a parquet file."""
    words = [{"tokens": np.array(["Ann", "sleeps"]), "tags": np.array(["B-PER", "O"])}]
    assert infer(words, Columns(), "rows").kind == "tag"
    asked = [
        {"question": f"What is {n}?", "options": np.array(["a", "b"]), "answer": np.int64(n % 2)} for n in range(4)
    ]
    assert infer(asked, Columns(), "rows").kind == "choice"
