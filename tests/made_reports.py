"""Folders of runs with records of one's own, and pages taken apart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from bertsmith.training.records.names import EVENTS_FILE, STARTED_ON
from made_pages import write_lines

# They have no content in HTML, and so no end.
_VOID = {"meta", "input", "br", "!doctype"}


def train_record(step: int, phase: int = 1, **figures: float) -> dict[str, Any]:
    """A line of training as the loop writes it."""
    usual = {
        "learning_rate": 1e-4, "loss": 5.0, "gradient_norm": 1.0, "steps": 1.0, "tokens": 100.0,
        "tokens_per_second": 50.0, "seconds_per_step": 2.0, "data_wait_share": 0.25, "memory_bytes": 2e9,
    }  # fmt: skip
    return {"kind": "train", "step": step, "phase": phase, "phase_step": step, **usual, **figures}


def write_run(
    folder: Path,
    records: Iterable[Mapping[str, Any]] = (),
    events: Iterable[Mapping[str, Any]] | None = (),
    recipe: str = "seed: 1\n",
    **identity: Any,
) -> Path:
    """The folder of a run that has these records. events: None for a run of a version that kept none."""
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({**identity, STARTED_ON: {"device": "cpu"}}))
    (folder / "recipe.yaml").write_text(recipe)
    write_lines(folder / "metrics.jsonl", records)
    if events is not None:
        write_lines(folder / EVENTS_FILE, events)
    return folder


class Parsed(HTMLParser):
    """A page, whose elements must be closed in the order in which they were opened.

    elements: (name, attributes) of each. text: what is read. tables: by caption, the rows of cells.
    """

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._open: list[str] = []
        self._words: list[str] = []
        self._cell: list[str] | None = None
        self._rows: list[list[str]] = []
        self._caption = ""
        self.feed(page)
        self.close()
        assert not self._open, f"never closed: {self._open}"
        self.text = " ".join("".join(self._words).split())
        self.charts = [ElementTree.fromstring(each) for each in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in _VOID:
            self._open.append(tag)
        if tag == "table":
            self._rows, self._caption = [], ""
        if tag == "tr":
            self._rows.append([])
        if tag in ("td", "th", "caption"):
            self._cell = []

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, f"{tag} is closed where it is not the last that was opened"
        if tag in ("td", "th", "caption") and self._cell is not None:
            words = " ".join("".join(self._cell).split())
            if tag == "caption":
                self._caption = words
            else:
                self._rows[-1].append(words)
            self._cell = None
        if tag == "table":
            self.tables[self._caption] = self._rows

    def handle_data(self, data: str) -> None:
        if "style" not in self._open:
            self._words.append(data)
        if self._cell is not None:
            self._cell.append(data)

    def column(self, caption: str, place: int = 1) -> dict[str, str]:
        """A column of a table by the first one."""
        return {row[0]: row[place] for row in self.tables[caption][1:]}
