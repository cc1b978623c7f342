"""Whatever a run's texts are, they stay texts of the page."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.report.markup import Markup, distinct, element, number, some, table
from made_reports import Parsed


@given(st.text(), st.text())
def test_any_text_can_be_content_and_attribute(content: str, attribute: str) -> None:
    made = element("p", content, title=attribute)
    found = Parsed(made)
    assert [name for name, _ in found.elements] == ["p"]
    ElementTree.fromstring(made)
    made.encode()


def test_a_script_in_a_label_is_read_and_not_run() -> None:
    found = Parsed(table("<b>caption</b>", ["<i>head</i>", "x"], [["</td><script>alert(1)</script>", '"&amp;']]))
    assert "script" not in {name for name, _ in found.elements}
    assert found.tables["<b>caption</b>"][1] == ["</td><script>alert(1)</script>", '"&amp;']


def test_what_html_has_no_character_for_is_replaced() -> None:
    assert element("p", "a\x00b\ud800c\x1bd\te\nf") == "<p>a�b�c�d\te\nf</p>"
    assert element("p", Markup("<b>x</b>"), "<") == "<p><b>x</b>&lt;</p>"


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "–"), (0.123456, "0.1235"), (1234.56, "1,235"), (12, "12"),
        (3e-5, "3e-05"), (float("nan"), "not finite"),
        (-0.5, "-0.5"), (-0.0, "0"), (1e20, "1e+20"), (True, "True"),
    ],
)  # fmt: skip
def test_numbers(value: object, said: str) -> None:
    assert number(value) == said


@given(st.integers(0, 500), st.integers(2, 50))
def test_some_places_have_the_first_and_the_last(count: int, most: int) -> None:
    found = some(count, most)
    assert len(found) == min(count, most) or len(set(found)) == len(found) <= most
    assert not count or (found[0], found[-1]) == (0, count - 1)
    assert found == sorted(set(found))


def test_names_are_as_long_as_they_must_be() -> None:
    assert distinct([("home", "a", "run"), ("home", "b", "run")]) == ["a/run", "b/run"]
    assert distinct([("home", "first"), ("home", "second")]) == ["first", "second"]
