"""A chart as SVG: lines over axes in a box as wide as a phone, which grows without loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertsmith.report.axes import Axis, rounded_axis, tight_axis
from bertsmith.report.curves import Floats, thinned
from bertsmith.report.markup import Markup, element, joined

WIDTH, HEIGHT = 360, 210
TOP, BOTTOM = 8, 30
COLOURS, DASHES = 8, ("", "6 3", "2 2", "8 3 2 3")
_LETTER, _LINE = 6, 10  # the width of a letter and the height of a line of small print
_MOST_ENDS, _MOST_MARKS = 12, 60


@dataclass(frozen=True)
class Style:
    """How a curve is distinguished: by colour, by dashes, and by `key`, the few letters at its end. run: the number
    of its run."""

    colour: int = 0
    dashes: int = 0
    key: str = ""
    run: int = 0


@dataclass(frozen=True)
class Line:
    """A curve. marks: "" draws a line alone, "full" one with a dot at each point, "hollow" one with rings. faint: a
    grey dotted line to compare with, which has no key."""

    label: str
    xs: Floats
    ys: Floats
    style: Style = Style()
    marks: str = ""
    faint: bool = False


@dataclass(frozen=True)
class Chart:
    """What is drawn. x, y: the words at the axes. from_zero: whether the axis of y begins at 0. ends: of the axis of x,
    as the lines go where None. notches: places of x with a word each."""

    name: str
    title: str
    lines: Sequence[Line]
    x: str = "step"
    from_zero: bool = False
    ends: tuple[float, float] | None = None
    notches: Sequence[tuple[float, str]] = ()


def draw(chart: Chart, most: int) -> Markup:
    """The chart, whose lines have at most so many points. There must be a line, and each must have a point."""
    keys = list(dict.fromkeys(line.style.key for line in chart.lines if line.style.key))
    y = _y_axis(chart, HEIGHT - BOTTOM, -(HEIGHT - BOTTOM - TOP))
    left = 8 + _LETTER * max(map(len, y.labels))
    right = 10 + (_LETTER * max(map(len, keys)) if len(keys) > 1 else 0)
    x = _x_axis(chart, left, WIDTH - right - left)
    lines = joined(_line(line, x, y, most) for line in chart.lines)
    ends = _ends(chart.lines, x, y) if len(keys) > 1 else ""
    name = f"{chart.name}-title"
    return element(
        "svg",
        element("title", chart.title, id=name),
        _frame(chart, x, y),
        lines,
        ends,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_labelledby=name,
        class_="chart",
    )


def _x_axis(chart: Chart, start: float, length: float) -> Axis:
    low = min(float(line.xs.min()) for line in chart.lines)
    high = max(float(line.xs.max()) for line in chart.lines)
    return tight_axis(*(chart.ends or (low, high)), start, length)


def _y_axis(chart: Chart, start: float, length: float) -> Axis:
    low = min(float(line.ys.min()) for line in chart.lines)
    high = max(float(line.ys.max()) for line in chart.lines)
    if chart.from_zero and low >= 0:
        low, high = 0.0, high or 1.0
    return rounded_axis(low, high, start, length)


def _frame(chart: Chart, x: Axis, y: Axis) -> Markup:
    """Grid, ticks, words at the axes and notches."""
    left, right, top, bottom = x.start, x.start + x.length, y.start + y.length, y.start
    parts: list[str] = []
    for tick, label in zip(y.ticks, y.labels, strict=True):
        at = y.place(tick)
        parts.append(element("line", x1=left, x2=right, y1=at, y2=at, class_="grid"))
        parts.append(element("text", label, x=left - 4, y=at + 3.5, text_anchor="end"))
    for tick, label in zip(x.ticks, x.labels, strict=True):
        at = x.place(tick)
        parts.append(element("line", x1=at, x2=at, y1=bottom, y2=bottom + 4, class_="axis"))
        # A label near the end of the axis stays inside of the picture.
        half = _LETTER * len(label) / 2
        parts.append(element("text", label, x=min(at, WIDTH - half - 1), y=bottom + 14, text_anchor="middle"))
    parts.append(element("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis"))
    parts.append(element("text", chart.x, x=(left + right) / 2, y=HEIGHT - 3, text_anchor="middle"))
    for value, word in chart.notches:
        at = x.place(value)
        parts.append(element("line", x1=at, x2=at, y1=top, y2=bottom, class_="notch"))
        # A word that the picture ends before, as of a short last phase, stands on the other side of its line.
        beside = {"x": at + 3} if at + 3 + _LETTER * len(word) <= WIDTH else {"x": at - 3, "text_anchor": "end"}
        parts.append(element("text", word, y=top + 8, **beside))
    return joined(parts)


def _line(line: Line, x: Axis, y: Axis, most: int) -> Markup:
    xs, ys = thinned(line.xs, line.ys, most)
    points = [f"{a:.1f},{b:.1f}" for a, b in zip(x.place(xs).tolist(), y.place(ys).tolist(), strict=True)]
    kind = "faint" if line.faint else f"c{line.style.colour}"
    parts: list[str] = [
        element("polyline", points=" ".join(points), stroke_dasharray=DASHES[line.style.dashes] or False)
        if len(points) > 1
        else _mark(points[0])
    ]
    if line.marks:
        every = -(-len(points) // _MOST_MARKS)
        parts += [_mark(point) for point in points[::-every]]
    return element("g", *parts, class_=f"line {kind} run-{line.style.run} {line.marks}".strip())


def _mark(point: str) -> Markup:
    across, down = point.split(",")
    return element("circle", cx=across, cy=down, r="2.2")


def _ends(lines: Sequence[Line], x: Axis, y: Axis) -> Markup:
    """The key of each curve at its end, moved up or down where they would cover one another; none where there are too
    many: the table under the chart has them all."""
    last = {line.style: y.place(float(line.ys[-1])) for line in reversed(lines) if line.style.key}
    if len(last) > _MOST_ENDS:
        return Markup("")
    styles = sorted(last, key=lambda style: last[style])
    places = spread([last[style] for style in styles], _LINE, TOP + _LINE / 2, HEIGHT - BOTTOM)
    kinds = [f"end c{style.colour} run-{style.run}" for style in styles]
    return joined(
        element("text", style.key, x=x.start + x.length + 3, y=place + 3.5, class_=kind)
        for style, place, kind in zip(styles, places, kinds, strict=True)
    )


def spread(places: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Rising places moved as little as needed to be `apart`, between `low` and `high`, which must have room for all."""
    found: list[float] = []
    for place in places:
        found.append(max(place, low, found[-1] + apart if found else low))
    end = high
    for number in reversed(range(len(found))):
        found[number] = min(found[number], end)
        end = found[number] - apart
    return found


def floats(values: Sequence[float]) -> Floats:
    """For a `Line`."""
    return np.asarray(values, dtype=np.float64)
