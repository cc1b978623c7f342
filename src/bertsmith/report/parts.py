"""What the parts of the page share: how much of everything is shown, and how runs are distinguished."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from bertsmith.base.log import counted
from bertsmith.report.markup import Markup, element, paragraph
from bertsmith.report.reading import RunRead
from bertsmith.report.svg import COLOURS, DASHES, Style


@dataclass(frozen=True)
class Limits:
    """The most that is shown of what may be long. points: of a curve. rows: of a table. classes: of a confusion matrix.
    text: characters of a text that is shown on demand; brief: of one that is shown at once."""

    points: int = 600
    rows: int = 150
    classes: int = 30
    text: int = 10_000
    brief: int = 160

    def halved(self) -> Self:
        """For a page that is too large."""
        return type(self)(*(max(4, value // 2) for value in vars(self).values()))


def shown_of(shown: int, count: int, what: str, how: str) -> str:
    """A note on what a table leaves out; "" where that is nothing."""
    return "" if shown >= count else f"{shown:,} of {counted(count, what)} are shown: {how}."


def noted(note: str) -> list[Markup]:
    """A note as a paragraph; none for ""."""
    return [paragraph(note, class_="note")] if note else []


def title_of(run: RunRead) -> Markup:
    """The name of a run, after its letter where there are several."""
    name = element("bdi", run.name)
    return Markup(f"{element('b', run.key)} {name}") if run.key else name


def style_of(run: RunRead, stage: str, place: int) -> Style:
    """Of the curve of a run: runs differ in colour and dashes, or where there is one run, its stages; of several runs,
    stages differ in dashes. place: of the stage."""
    label = stage.rpartition(" ")[2]
    if not run.key:
        return Style(place % COLOURS, (place + place // COLOURS) % len(DASHES), label, 0)
    dashes = (run.number + run.number // COLOURS + place) % len(DASHES)
    return Style(run.number % COLOURS, dashes, f"{run.key} {label}".strip(), run.number)
