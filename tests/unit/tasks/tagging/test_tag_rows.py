"""Rows of tagged words and of texts with marked spans: what they may hold, and what is wrong with the rest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from bertsmith.tasks.scoring.entities import Span
from bertsmith.tasks.tagging.rows import marked_spans, tags_of_words, word_offsets, words_of

TEXT = "Ann lives in New York"


def test_words_come_as_a_list_or_with_spaces_between_them() -> None:
    assert words_of(["EU", "rejects"], "tokens") == ["EU", "rejects"]
    assert words_of(("EU",), "tokens") == ["EU"]
    assert words_of("EU  rejects", "tokens") == ["EU", "rejects"]
    assert words_of('["EU", "re jects"]', "tokens") == ["EU", "re jects"]
    assert words_of("[1] [2]", "tokens") == ["[1]", "[2]"]
    assert words_of("[ 1 ]", "tokens") == ["[", "1", "]"]
    assert words_of(np.array(["EU", "rejects"]), "tokens") == ["EU", "rejects"]
    assert word_offsets(["EU", "", "rejects"]).tolist() == [[0, 2], [3, 3], [4, 11]]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "'tokens' is empty"),
        ("  ", "'tokens' is empty"),
        (None, "holds None, and not a list of words"),
        ({"a": 1}, "not a list of words"),
        (["a", 3], "has 3 among the words"),
        (["a", None], "has None among the words"),
    ],
)
def test_what_are_no_words(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        words_of(value, "tokens")


@pytest.mark.parametrize(
    ("tags", "message"),
    [
        (["O"], "column 'ner' has 1 tag for 2 words"),
        (["O", "O", "O"], "has 3 tags for 2 words"),
        (["O", "NN"], "word 2, 'rejects': 'NN' is not a tag of a span"),
        ([0, 3], "has numbers as tags, such as 0; .* --labels O,B-PER,I-PER"),
        ("0 3", "has numbers as tags"),
        ([0.5, "O"], "has 0.5 among the tags, which is not a text"),
        ([], "'ner' is empty"),
    ],
)
def test_what_are_no_tags(tags: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tags_of_words(tags, ["EU", "rejects"], "ner")


def test_numbers_stand_for_tags_by_their_places() -> None:
    names = ["O", "B-org", "I-org"]
    for tags in ([1, 0], "1 0", "[1, 0]", '["1", "O"]', np.array([1, 0]), ["B-org", "O"]):
        assert tags_of_words(tags, ["EU", "rejects"], "ner", names) == ["B-org", "O"]
    for tags, message in (
        ([3, 0], "'3' has no name: there are 3"),
        (["9" * 5000, "O"], "999 ... has no name: there are 3"),
        (["B-per", "O"], "'B-per' is not one of O, B-org"),
    ):
        with pytest.raises(ValueError, match=message):
            tags_of_words(tags, ["EU", "rejects"], "ner", names)


@pytest.mark.parametrize(
    "value",
    [
        [{"start": 13, "end": 21, "label": "loc"}, {"start": 0, "end": 3, "label": " per ", "id": 7}],
        [[0, 3, "per"], (13, 21, "loc")],
        [{"start": 0, "end": 3, "label": "per", "text": " ann"}, {"start": 13, "end": 21, "label": "loc", "text": ""}],
        '[{"start": 0, "end": 3, "label": "per"}, {"start": 13, "end": 21, "label": "loc"}]',
        [{"start": 0, "end": 3, "labels": ["per"]}, {"start": 13, "end": 21, "text": "New York", "labels": ["loc"]}],
        [{"id": 1, "start_offset": 0, "end_offset": 3, "label": "per"}, ["loc", 13, 21]],
    ],
)
def test_spans_in_every_form(value: Any) -> None:
    assert marked_spans(value, TEXT, "spans") == [Span(0, 3, "per"), Span(13, 21, "loc")]


def test_a_text_may_have_no_spans() -> None:
    assert marked_spans([], TEXT, "spans") == marked_spans("", TEXT, "spans") == []


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "holds None, and not a list of spans"),
        ("x", "not a list of spans, or JSON of one"),
        ("[{'start': 0, 'end': 3, 'label': 'x'}]", "as Python shows it; write it as JSON"),
        ('[{"start": 0, "end": 3, "end": 4, "label": "x"}]', "has the key 'end' twice"),
        ("3", "not a list of spans"),
        ([{"start": 0, "end": 3}], "a span is"),
        ([3], "a span is"),
        ([{"start": 0, "end": 3, "labels": ["x", "y"]}], "a span is"),
        ([{"start": 0, "end": 3, "labels": 5}], "a span is"),
        ([{"start": 0.0, "end": 3, "label": "x"}], "needs two whole numbers"),
        ([{"start": True, "end": 3, "label": "x"}], "needs two whole numbers"),
        ([{"start": 0, "end": 3, "label": " "}], "the name of a type"),
        ([{"start": 0, "end": 3, "label": 5}], "the name of a type"),
        ([[0, 3, "x\ud800"]], "column 'spans' holds half of a surrogate pair"),
        ([[0, 22, "x"]], "from 0 to 22 does not lie in the text, which has 21 characters"),
        ([[-1, 3, "x"]], "does not lie in the text"),
        ([[3, 3, "x"]], "does not lie in the text"),
        ([[5, 3, "x"]], "does not lie in the text"),
        ([[3, 4, "x"]], "white space alone"),
        ([{"start": 1, "end": 3, "label": "x", "text": "Ann"}], "from 1 to 3 is 'nn', and its 'text' is 'Ann'"),
        ([[0, 9, "x"], [4, 9, "y"]], r"two spans overlap: 'Ann lives' \(0 to 9\) and 'lives' \(4 to 9\)"),
        ([[0, 3, "x"], [0, 3, "y"]], "two spans overlap"),
    ],
)
def test_what_are_no_spans(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        marked_spans(value, TEXT, "spans")
