"""Charts: everything that is drawn lies in the picture, and curves differ by more than colour."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.report.parts import style_of
from bertsmith.report.reading import RunRead, key_of
from bertsmith.report.svg import HEIGHT, WIDTH, Chart, Line, Style, draw, floats

PLAIN = Style()
VALUES = st.floats(min_value=-1e100, max_value=1e100, allow_nan=False)


def drawn(*lines: Line, most: int = 100, **options: object) -> ElementTree.Element:
    return ElementTree.fromstring(draw(Chart("loss", "Loss <1>", lines, **options), most))


def line(ys: list[float], style: Style = PLAIN, marks: str = "") -> Line:
    return Line("training", np.arange(1.0, len(ys) + 1), floats(ys), style, marks)


@given(st.lists(VALUES, min_size=1, max_size=30), st.lists(VALUES, min_size=1, max_size=30), st.integers(1, 30))
def test_every_point_and_word_lies_in_the_picture(first: list[float], second: list[float], notch: int) -> None:
    notches = [(min(notch, max(len(first), len(second))), "phase 2")]
    picture = drawn(line(first, Style(0, 0, "A")), line(second, Style(1, 0, "B"), "full"), notches=notches)
    assert picture.get("viewBox") == f"0 0 {WIDTH} {HEIGHT}"
    for each in picture.iter("polyline"):
        for point in (each.get("points") or "").split():
            across, down = map(float, point.split(","))
            assert 0 <= across <= WIDTH
            assert 0 <= down <= HEIGHT
    for each in picture.iter("text"):
        width = 6 * len(each.text or "")
        start = float(each.get("x") or "")
        start -= {"end": width, "middle": width / 2}.get(each.get("text-anchor") or "", 0)
        assert 0 <= start <= WIDTH + 1 - width, each.text
        assert 0 <= float(each.get("y") or "") <= HEIGHT


def test_higher_values_are_higher_and_later_ones_further_right() -> None:
    (path,) = drawn(line([1.0, 3.0, 2.0])).iter("polyline")
    points = [tuple(map(float, point.split(","))) for point in (path.get("points") or "").split()]
    assert points[0][0] < points[1][0] < points[2][0]
    assert points[1][1] < points[2][1] < points[0][1]


def test_the_picture_has_a_title_for_those_who_do_not_see_it() -> None:
    picture = drawn(line([1.0, 2.0]))
    title = picture.find("title")
    assert title is not None
    assert title.text == "Loss <1>"
    assert (picture.get("role"), picture.get("aria-labelledby")) == ("img", title.get("id"))


def test_a_single_point_is_a_dot_and_marks_are_on_their_points() -> None:
    assert len(list(drawn(line([1.0])).iter("circle"))) == 1
    dots = list(drawn(line([1.0, 2.0, 3.0], marks="full")).iter("circle"))
    assert len(dots) == 3
    assert len(list(drawn(line([0.0] * 500, marks="full"), most=400).iter("circle"))) <= 60


def test_constant_curves_and_those_from_zero_are_drawn() -> None:
    assert drawn(line([65536.0] * 5)) is not None
    words = [each.text for each in drawn(line([5.0, 6.0]), from_zero=True).iter("text")]
    assert "0" in words


def one_of(runs: int, number: int) -> RunRead:
    """A run of so many on a page."""
    return RunRead("run", number, key_of(number) if runs > 1 else "", Path("run"), "", {}, {}, {})


@pytest.mark.parametrize("runs", [2, 9, 30])
def test_runs_differ_by_key_and_colour_or_dashes(runs: int) -> None:
    styles = [style_of(one_of(runs, number), "", 0) for number in range(runs)]
    assert len({style.key for style in styles}) == runs
    assert len({(style.colour, style.dashes) for style in styles}) == runs
    seeds = [style_of(one_of(1, 0), f"seed {seed}", place) for place, seed in enumerate(range(40, 52))]
    assert len({(style.colour, style.dashes) for style in seeds}) == 12
    assert seeds[0].key == "40"


def test_letters_go_on_after_z() -> None:
    assert [key_of(number) for number in (0, 25, 26, 53)] == ["A", "Z", "A2", "B3"]


def test_many_curves_have_no_keys_at_their_ends_and_few_have() -> None:
    few = drawn(*(line([1.0, 2.0], style_of(one_of(3, number), "", 0)) for number in range(3)))
    assert [each.text for each in few.iter("text") if "end" in (each.get("class") or "").split()] == ["C", "B", "A"]
    many = drawn(*(line([1.0, 2.0], style_of(one_of(20, number), "", 0)) for number in range(20)))
    assert not [each for each in many.iter("text") if "end" in (each.get("class") or "").split()]
