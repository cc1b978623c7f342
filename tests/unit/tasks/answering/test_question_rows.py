"""Rows of questions as records, in every shape that answers come in."""

from __future__ import annotations

import math

import numpy as np
import pytest

from bertsmith.tasks.answering.gold import ELSEWHERE, MISSING, Gold
from bertsmith.tasks.answering.rows import learnable, question_of
from bertsmith.tasks.reading.records import Columns, Record

TWO = (Gold("cat", 4), Gold("sat", 8))


def read(labelled=True, columns=None, **row):
    return question_of({"question": "who", "context": "the cat sat", **row}, columns or Columns(), labelled, "row 1")


@pytest.mark.parametrize(
    ("row", "golds"),
    [
        ({"answers": [{"text": "cat", "answer_start": 4}, {"text": "sat", "answer_start": 8}]}, TWO),
        ({"answers": {"text": ["cat", "sat"], "answer_start": [4, 8]}}, TWO),
        ({"answers": {"text": np.array(["cat", "sat"]), "answer_start": np.array([4, 8])}}, TWO),
        ({"answers": {"text": ["cat"]}}, (Gold("cat"),)),
        ({"answers": {"text": "cat", "answer_start": 4.0}}, (Gold("cat", 4),)),
        ({"answers": {"text": [], "answer_start": []}}, ()),
        ({"answers": ["cat", "sat"]}, (Gold("cat"), Gold("sat"))),
        ({"answers": ["cat", "sat"], "answer_start": [4, 8]}, TWO),
        ({"answers": '["cat", "sat"]', "answer_start": "[4, 8]"}, TWO),
        ({"answers": ["cat"], "answer_start": 4}, (Gold("cat", 4),)),
        ({"answers": [], "answer_start": -1}, ()),
        ({"answers": "cat"}, (Gold("cat"),)),
        ({"answers": "cat", "answer_start": "4"}, (Gold("cat", 4),)),
        ({"answers": "cat", "answer_start": "4.0"}, (Gold("cat", 4),)),
        ({"answers": "cat", "answer_start": ""}, (Gold("cat"),)),
        ({"answers": [{"text": "cat", "answer_start": -1}]}, (Gold("cat", -1),)),
        ({"answers": ""}, ()),
        ({"answers": None, "is_impossible": True}, ()),
        ({"answers": []}, ()),
        ({"answers": '[{"text": "cat", "answer_start": 4}, {"text": "sat", "answer_start": 8}]'}, TWO),
        ({"answers": '{"text": ["cat", "sat"], "answer_start": [4, 8]}', "is_impossible": "false"}, TWO),
        ({"answers": "[]", "is_impossible": "true"}, ()),
        ({"answers": "[3]"}, (Gold("[3]"),)),
        *(({"answers": "cat", "is_impossible": no}, (Gold("cat"),)) for no in ("False", "false", "0", 0.0, "No", "")),
        *(({"answers": None, "is_impossible": yes}, ()) for yes in ("True", "true", "1", "1.0", "YES", np.True_)),
    ],
)  # fmt: skip
def test_answers_in_every_shape(row, golds):
    assert read(**row, id=7) == Record("who", "the cat sat", golds, "row 1", "7")


def test_without_labels_answers_are_not_looked_at():
    assert read(labelled=False, answers=3).label is None
    columns = Columns(question="q", context="c", answers="a")
    found = question_of({"q": "who", "c": "a cat", "a": "cat"}, columns, True, "row 1")
    assert (found.text, found.text_b, found.label) == ("who", "a cat", (Gold("cat"),))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"question": ""}, "column 'question' is empty"),
        ({"context": " "}, "column 'context' is empty"),
        ({"context": None}, "column 'context' holds no text"),
        ({}, "no answers in column 'answers'; a question without an answer has an empty list"),
        ({"answers": None, "is_impossible": False}, "no answers in column 'answers'"),
        ({"answers": 5}, "holds no answers"),
        ({"answers": {"text": ["a", "b"], "answer_start": [1]}}, "2 texts and 1 start"),
        ({"answers": ["a", "b"], "answer_start": [1]}, "2 texts and 1 start"),
        ({"answers": [{"text": "cat", "start": 4}]}, "the place of an answer as 'start'; it is read as 'answer_start'"),
        ({"answers": {"text": ["cat"], "start": [4]}}, "the place of an answer as 'start'"),
        ({"answers": {"text": ["a"], "answer_start": 1}}, "an object without lists of texts and of starts"),
        ({"answers": {"text": None}}, "an object without lists of texts and of starts"),
        ({"answers": [{"answer_start": 1}]}, "an answer is of type NoneType"),
        ({"answers": [{"text": "cat", "answer_start": [1]}]}, r"answer_start is \[1\]"),
        *(
            ({"answers": "cat", "answer_start": start}, f"answer_start is {start}, not a whole number")
            for start in (1.5, math.inf, math.nan, 10**400)
        ),
        ({"answers": ["cat"], "is_impossible": True}, "'is_impossible' is true"),
        ({"answers": "cat", "is_impossible": "TRUE"}, "'is_impossible' is true"),
        ({"answers": None, "is_impossible": "False"}, "no answers in column 'answers'"),
        ({"answers": "cat", "is_impossible": "perhaps"}, "'is_impossible' holds 'perhaps'; give true or false"),
    ],
)
def test_rows_that_are_no_questions(row, message):
    with pytest.raises(ValueError, match=message):
        read(**row)


def test_a_bare_text_is_no_question():
    with pytest.raises(ValueError, match="no mapping"):
        question_of("who", Columns(), False, "row 1")


def test_what_can_be_learned_is_told_from_what_cannot(said):
    records = [
        read(answers=[{"text": "cat", "answer_start": 4}], id="right"),
        read(answers=[{"text": "cat", "answer_start": 8}], id="elsewhere"),
        read(answers=["dog"], id="missing"),
        read(answers=["sat", "cat"], id="searched"),
        read(answers=["at"], id="in words"),
        read(answers=[], id="none"),
    ]
    left_out = []
    kept = learnable(records, lambda error, row: left_out.append((error.where, error.what, row["id"], row["answers"])))
    assert [record.id for record in kept] == ["right", "searched", "in words", "none"]
    assert [record.label for record in kept] == [(Gold("cat", 4),), (Gold("sat", 8),), (Gold("at", 5),), ()]
    told = "\n".join(said.messages)
    assert (
        "1 of 6 questions are not learned, because the context has other words where the answer should start:\n"
        "    row 1 (id elsewhere)" in told
    )
    assert "because the answer is not in the context:\n    row 1 (id missing)" in told
    assert left_out == [
        ("row 1", ELSEWHERE, "elsewhere", [{"text": "cat", "answer_start": 8}]),
        ("row 1", MISSING, "missing", [{"text": "dog", "answer_start": None}]),
    ]
    assert "2 questions with an answer without a start" in told
    assert "1 question with several answers" in told
    assert "1 question with such an answer at several places" in told


def test_many_faults_are_counted_and_the_first_named(said):
    learnable([read(answers=["dog"], id=str(number)) for number in range(30)])
    (line,) = said.messages
    assert line.startswith("warning: 30 of 30 questions")
    assert line.endswith("row 1 (id 4)\n    and 25 more")
