"""Sentences of tagged words that can be learned, as rows of words and as rows of text with spans."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bertsmith.rows.conll import conll_rows
from bertsmith.tasks.scoring.entities import Span
from bertsmith.tasks.tagging.schemes import spans_of
from made_rows import WORDS

Row = dict[str, Any]


def tagged_rows(count: int, seed: int, words: int = 9) -> list[Row]:
    """Filler with entities: "lovely" and "lovely word0" are praise, "awful" is blame."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        tokens: list[str] = []
        tags: list[str] = []
        while len(tokens) < words:
            long = draw.randrange(1, 3)
            praise = (["lovely", WORDS[0]][:long], ["B-praise", "I-praise"][:long])
            found = draw.choice([praise, (["awful"], ["B-blame"])])
            filler = draw.choices(WORDS[1:], k=draw.randrange(1, 5))
            tokens += [*found[0], *filler]
            tags += [*found[1], *["O"] * len(filler)]
        made.append({"tokens": tokens, "tags": tags})
    return made


def with_spans(row: Row) -> Row:
    """The same row as a text with the characters of its entities."""
    starts = [sum(len(word) + 1 for word in row["tokens"][:place]) for place in range(len(row["tokens"]))]
    spans = [
        {"start": starts[start], "end": starts[end - 1] + len(row["tokens"][end - 1]), "label": label}
        for start, end, label in spans_of(row["tags"])
    ]
    return {"text": " ".join(row["tokens"]), "spans": spans}


def entities_of(answer: Row) -> list[Span]:
    """The entities of an answer as spans of characters."""
    return [Span(each["start"], each["end"], each["label"]) for each in answer["entities"]]


def conll_file(path: Path) -> Iterator[Row]:
    """The sentences of a file of CoNLL's columns."""
    with path.open("rb") as file:
        for row in conll_rows((0, line) for line in file):
            assert row.cells
            assert not row.fault
            yield {"tokens": [cells[0] for cells in row.cells], "tags": [cells[-1] for cells in row.cells]}
