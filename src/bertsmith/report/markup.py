"""HTML and SVG as text. Whatever is not `Markup` is escaped, so that no text of a run can become part of the page."""

from __future__ import annotations

import html
import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any

# What HTML has no character for: control characters but tab and line end, and halves of pairs of UTF-16.
_NO_CHARACTER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_WITHOUT_END = ("meta", "input", "br")
NOTHING = "–"


class Markup(str):
    """Text that is HTML or SVG already."""

    __slots__ = ()


def escaped(text: str) -> Markup:
    """A text as it is to be read, in an element or in an attribute."""
    return Markup(html.escape(_NO_CHARACTER.sub("\ufffd", text), quote=True))


def joined(parts: Iterable[str], between: str = "") -> Markup:
    """Texts and markup, one after the other."""
    return Markup(between.join(part if isinstance(part, Markup) else escaped(part) for part in parts))


def element(tag: str, /, *content: str, **attributes: str | float | bool) -> Markup:
    """An element. attributes: `class_` is class, `stroke_width` is stroke-width; False leaves one out."""
    named = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(_attribute(value))}"'
        for key, value in attributes.items()
        if value is not False
    )
    end = "" if tag in _WITHOUT_END else f"{joined(content)}</{tag}>"
    return Markup(f"<{tag}{named}>{end}")


def _attribute(value: str | float | bool) -> str:
    if isinstance(value, str):
        return value
    return "" if value is True else f"{value:.1f}".removesuffix(".0")


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1, class_: str = "") -> Markup:
    """A table in a box of its own that scrolls where it is wide. left: the columns from the left that hold words; the
    others hold numbers. class_: of the box. The first cell of a row is its header."""

    def cells(row: Sequence[str], scopes: Sequence[str | bool]) -> Markup:
        return joined(
            element("th" if scope else "td", cell, scope=scope, class_=False if place < left else "number")
            for place, (cell, scope) in enumerate(zip(row, scopes, strict=True))
        )

    first = element("thead", element("tr", cells(head, ["col" if cell else False for cell in head])))
    body = (element("tr", cells(row, ["row", *[False] * (len(head) - 1)])) for row in rows)
    inside = element("table", element("caption", caption), first, element("tbody", *body))
    return element("div", inside, class_=f"scroll {class_}".strip(), role="region", aria_label=caption, tabindex="0")


def section(name: str, title: str, *content: str) -> Markup:
    """A part of the page that links may name."""
    return element("section", element("h2", title, id=name), *content, aria_labelledby=name)


def details(summary: str, *content: str) -> Markup:
    """What is shown on demand; it needs no script."""
    return element("details", element("summary", summary), *content)


def paragraph(*content: str, **attributes: str) -> Markup:
    return element("p", *content, **attributes)


def number(value: Any) -> str:
    """A figure for a table: four digits, whole numbers in full; a dash for none."""
    if value is None:
        return NOTHING
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if not math.isfinite(value):
        return "not finite"
    if value == round(value) and abs(value) < 1e15:
        return f"{int(value):,}"  # -0.0 is 0
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e15 else f"{value:.4g}"


def some(count: int, most: int) -> list[int]:
    """At most so many places out of `count`, evenly, with the first and the last."""
    if count <= most:
        return list(range(count))
    return sorted({round(place * (count - 1) / (most - 1)) for place in range(most)})


def distinct(names: Sequence[Sequence[str]]) -> list[str]:
    """The shortest ends of paths that tell them apart: [("a", "run"), ("b", "run")] are "a/run" and "b/run"."""
    for length in itertools.count(1):
        ends = ["/".join(name[-length:]) for name in names]
        if len(set(ends)) == len(ends) or all(length >= len(name) for name in names):
            return ends
    raise AssertionError
