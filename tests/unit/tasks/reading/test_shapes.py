"""What a column holds is told from its values."""

from __future__ import annotations

import pytest

from bertsmith.tasks.reading.shapes import shapes_of

LONG = [f"this is sentence number {number} of many" for number in range(10)]


def shape(values, name="column"):
    return shapes_of([{name: value} for value in values])[name]


@pytest.mark.parametrize(
    ("values", "holds"),
    [
        (["a", "b c"], "text"),
        (["1", "2.5", "-3e4", " 7 "], "number"),
        ([1, 2.5], "number"),
        (["1", "two"], "text"),
        ([True, False], "yes or no"),
        ([["a"], ["b", "c"]], "words"),
        ([[1, 2], [3]], "numbers"),
        ([[{"start": 1}], [[1, 2, "x"]]], "objects"),
        ([{"text": "a"}], "object"),
        ([None, "", []], "nothing"),
        ([1, ["a"]], "different things"),
        ([True, 1], "different things"),
    ],
)
def test_what_a_column_holds(values, holds):
    assert shape(values).holds == holds


def test_empty_cells_are_not_counted():
    found = shape(["a b", None, "", "c d e"])
    assert (found.rows, found.filled, found.words) == (4, 2, 2.5)
    assert shapes_of([{"a": 1}, {"b": 2}])["b"].filled == 1


@pytest.mark.parametrize("name", ["id", "ID", "#1 ID", "pairID", "promptId", "row_id", "uuid", "index", "idx", "url"])
def test_names_of_ids(name):
    assert shape(LONG, name).is_id
    assert not shape(LONG, name).is_free_text


@pytest.mark.parametrize("name", ["valid", "paid", "text", "idea", "grid", "AID"])
def test_names_that_only_end_like_ids(name):
    assert not shape(LONG, name).is_id


def test_contents_of_ids():
    assert shape([str(number) for number in range(10)]).is_id
    assert shape([f"row{number}" for number in range(10)]).is_id
    assert shape(["https://a.b/c", "https://a.b/d-e"]).is_id, "addresses"
    assert not shape([5, 3, 4]).is_id, "numbers in no order may be amounts"
    assert not shape([1.5, 2.5, 3.5]).is_id
    assert not shape(["a", "b", "c"]).is_id
    assert not shape(["1", "2"]).is_id, "two rows show nothing"


def test_sentences_are_told_from_names():
    assert shape(LONG).is_free_text
    assert shape(["这部电影非常好看我很喜欢它的故事和演员", "剧情太差了完全不值得花时间去看这部片子"]).is_free_text
    assert not shape(["New York City", "Salt Lake City", "New York City"] * 30).is_free_text
    assert not shape(["good", "bad"] * 5).is_free_text


def test_a_description_shows_the_first_values():
    assert shape(["a" * 50, "b", "c", "d"]).described() == "'column' (" + "a" * 21 + "..., b, c, ...)"
    assert shape([None]).described() == "'column' (empty)"
