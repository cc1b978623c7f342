"""The report of a tagger: entities of each type, with sentences drawn again for intervals, and the tags of words.

Legend: N records, W words of all of them, C tags, L types.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.tasks.report.parts import About, about_records
from bertsmith.tasks.report.report import Classified, report_tags
from bertsmith.tasks.scoring.entities import Span, agreement_by_type
from bertsmith.tasks.tagging.align import Words
from bertsmith.tasks.tagging.rows import TaggedRecord
from bertsmith.tasks.tagging.schemes import OUTSIDE


@dataclass(frozen=True)
class Tagged:
    """What a tagger says of N records. names: of the C tags. words: of each record. logits: [W, C], of their words one
    record after the other. known: bool[W], whether a word has a piece, without which its logits mean nothing. tags,
    true: the tags that are answered and those that are true, of each record. spans: (answered, true) entities of
    each."""

    names: tuple[str, ...]
    records: Sequence[TaggedRecord]
    words: Sequence[Words]
    logits: NDArray[np.floating[Any]]
    known: NDArray[np.bool_]
    tags: Sequence[Sequence[str]]
    true: Sequence[Sequence[str]]
    spans: Sequence[tuple[Sequence[Span], Sequence[Span]]]


def write_tag_report(folder: Path, part: str, of: Tagged) -> None:
    """Writes the report into the folder. Words without a piece, and those whose tag no training row has, are not among
    the words; the entities are all there."""
    places = {name: place for place, name in enumerate(of.names)}
    answered, true = (
        np.array([places.get(tag, -1) for row in rows for tag in row], dtype=np.int64) for rows in (of.tags, of.true)
    )
    kept = of.known & (true >= 0)
    sentences = about_records(part, of.records)
    words = _about_words(sentences, of, kept)
    classified = Classified(of.names, of.logits[kept], true[kept], answered[kept])
    each = [agreement_by_type([ours], [theirs]) for ours, theirs in of.spans]
    of_model = {name.partition("-")[2] for name in of.names if name != OUTSIDE}
    types = tuple(sorted(of_model.union(*each)))

    def counts(side: str) -> NDArray[np.int64]:
        return np.array([[getattr(found[name], side) if name in found else 0 for name in types] for found in each])

    sides = counts("right"), counts("predicted"), counts("true")
    report_tags(folder, words, classified, sentences, sides, types)


def _about_words(sentences: About, of: Tagged, kept: NDArray[np.bool_]) -> About:
    """The words that are kept, each with its record, whose words are not independent."""
    shown, groups = [], []
    for number, (sentence, words) in enumerate(zip(sentences.shown, of.words, strict=True)):
        for start, end in words.offsets:
            shown.append({**sentence, "word": of.records[number].text[start:end], "start": int(start)})
            groups.append(number if sentences.groups is None else sentences.groups[number])
    places = np.flatnonzero(kept)
    return About(sentences.part, [shown[place] for place in places], [groups[place] for place in places])
