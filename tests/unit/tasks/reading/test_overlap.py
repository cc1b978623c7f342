"""Texts that come more than once are counted and named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.tasks.reading.bad_rows import listed
from bertsmith.tasks.reading.overlap import Item, contradictions, rows_in_both, text_key


def items(name, rows):
    return [Item(f"{name}:{line}", text_key((text,)), label) for line, (text, label) in enumerate(rows, start=2)]


def test_rows_of_both_parts_are_named_with_their_labels():
    train = items("train.csv", [("A  good\tfilm", "1"), ("bad", "0"), ("a good film", "1")])
    dev = items("dev.csv", [("new", "1"), (" a Good film\n", "1"), ("BAD", "1")])
    found = rows_in_both(dev, train)
    assert found == ["dev.csv:3 is train.csv:2", "dev.csv:4 is train.csv:3 (labelled 1, there 0)"]
    unlabelled = rows_in_both([Item("a", b"k", "4.2")], [Item("b", b"k", "")])
    assert unlabelled == ["a is b"], "a label that is not compared is none"


def test_only_the_first_ones_are_named():
    train = items("train.csv", [(str(number), "a") for number in range(20)])
    found = rows_in_both(items("dev.csv", [(str(number), "a") for number in range(8)]), train)
    assert len(found) == 8
    said = listed("8 rows", found)
    assert said.count("\n") == 6
    assert said.endswith("and 3 more")
    assert rows_in_both([], train) == []


def test_texts_with_several_labels_are_named_once():
    rows = [("same", "1"), ("Same ", "0"), ("same", "2"), ("other", "1"), ("other", "1")]
    found = contradictions(items("train.csv", rows))
    assert found == ["train.csv:2 is labelled 1, train.csv:3 0"]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("a", "b"), ("b", "a")),
        (("a b", "c"), ("a", "b c")),
        (("a", None), ("a", "")),
        (("a",), ("a", None)),
        (("a",), ("a.",)),
        (("é",), ("e",)),
    ],
)
def test_different_texts_have_different_keys(one, other):
    assert text_key(one) != text_key(other)


def test_case_and_white_space_do_not_count():
    assert text_key(("Straße  X", "\u00a0Ä")) == text_key(("STRASSE x", "ä"))
    assert text_key(("caf\u00e9",)) == text_key(("cafe\u0301",)), "in another Unicode form"
    assert len(text_key(("\ud800",))) == 16


@given(st.lists(st.tuples(st.text("ab ", max_size=3), st.sampled_from("12")), max_size=20))
def test_counts_are_those_of_comparing_all_with_all(rows):
    half = len(rows) // 2
    train, dev = items("train", rows[:half]), items("dev", rows[half:])
    folded = [" ".join(text.split()) for text, _ in rows]
    assert len(rows_in_both(dev, train)) == sum(each in folded[:half] for each in folded[half:])
    labels = {text: {label for other, (_, label) in zip(folded, rows, strict=True) if other == text} for text in folded}
    assert len(contradictions(items("all", rows))) == sum(len(each) > 1 for each in labels.values())
