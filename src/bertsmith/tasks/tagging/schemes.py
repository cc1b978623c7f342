"""Tags of words, and the spans that they stand for, in every scheme of CoNLL's files.

Tags are read as conlleval reads them, whether or not they fit a scheme: a span begins at B, at a word that is a span of
its own (S, U, W), after O, after the end of a span (E, L), and where the type changes. So one reading serves all
schemes; the scheme only says which tags would have been written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from bertsmith.tasks.scoring.entities import Span

OUTSIDE = "O"
UNNAMED = "entity"
"""The type of tags without one, as files with one kind of span have them (B, I, O)."""

_TAG = re.compile(r"(?P<letter>[BILUESMW])(-(?P<label>\S(.*\S)?))?")
_FEW_MISFITS = 10
_BEGINS, _ENDS = frozenset("BSUW"), frozenset("ELSUW")


@dataclass(frozen=True)
class Scheme:
    """The letters of the first, middle and last word of a span, and of one that is a span of its own.

    apart: the first word has the middle's letter, unless a span of its type ends just before it (IOB1).
    """

    name: str
    first: str
    middle: str
    last: str
    single: str
    apart: bool = False


BIO = Scheme("BIO", "B", "I", "I", "B")
"""IOB2 of Tjong Kim Sang and Veenstra (1999): what models are trained on here, whatever the rows have."""

SCHEMES = (
    BIO,
    Scheme("IOB1", "B", "I", "I", "B", apart=True),  # Ramshaw and Marcus (1995)
    Scheme("IOBES", "B", "I", "E", "S"),
    Scheme("BILOU", "B", "I", "L", "U"),  # Ratinov and Roth (2009)
    Scheme("BMEWO", "B", "M", "E", "W"),
    Scheme("BMES", "B", "M", "E", "S"),
)


@lru_cache(maxsize=4096)
def split_tag(tag: str) -> tuple[str, str]:
    """(letter, type) of a tag; (O, "") outside of spans. ValueError for what is not a tag of a span."""
    if tag == OUTSIDE:
        return OUTSIDE, ""
    found = _TAG.fullmatch(tag)
    if found is None:
        raise ValueError(f"'{tag}' is not a tag of a span; use O, and B- and I- with a type, such as B-person")
    return found["letter"], found["label"] or UNNAMED


def spans_of(tags: Sequence[str]) -> list[Span]:
    """The spans of a sentence's tags, in words, in their order. ValueError for what is not a tag of a span."""
    found: list[Span] = []
    start, before = 0, (OUTSIDE, "")
    for place, tag in enumerate((*tags, OUTSIDE)):
        letter, label = here = split_tag(tag)
        if label != before[1] or letter in _BEGINS or before[0] in _ENDS:
            if before[0] != OUTSIDE:
                found.append(Span(start, place, before[1]))
            start = place
        before = here
    return found


def tags_of(spans: Iterable[Span], words: int, scheme: Scheme = BIO) -> list[str]:
    """The tags of a sentence of so many words with these spans, none of which overlap."""
    tags = [OUTSIDE] * words
    end_before, label_before = 0, ""
    for start, end, label in sorted(spans):
        touches = start == end_before and label == label_before
        first, single = (scheme.middle,) * 2 if scheme.apart and not touches else (scheme.first, scheme.single)
        letters = single if end - start == 1 else first + scheme.middle * (end - start - 2) + scheme.last
        tags[start:end] = [f"{letter}-{label}" for letter in letters]
        end_before, label_before = end, label
    return tags


def misfits(tags: Sequence[str], scheme: Scheme) -> list[int]:
    """The words whose tags are not those that the scheme has for the spans."""
    spans = spans_of(tags)
    if not spans:
        return []
    letters = [tag[0] for tag in tags]  # a type may be written out or not
    fitting = [tag[0] for tag in tags_of(spans, len(tags), scheme)]
    return [place for place, pair in enumerate(zip(letters, fitting, strict=True)) if pair[0] != pair[1]]


def scheme_of(sentences: Sequence[Sequence[str]], expected: Scheme = BIO) -> Scheme:
    """The scheme that the fewest tags of the sentences do not fit; of equals `expected`, or else the first."""
    best, fewest = expected, -1
    for scheme in (expected, *(scheme for scheme in SCHEMES if scheme != expected)):
        count = sum(len(misfits(tags, scheme)) for tags in sentences)
        if fewest < 0 or count < fewest:
            best, fewest = scheme, count
        if not fewest:
            break
    return best


def are_in(scheme: Scheme, sentences: Sequence[Sequence[str]]) -> bool:
    """Whether at most a tenth of the tags of spans, or a few of them, do not fit the scheme. Of tags at random, or
    of other words, more do not fit any."""
    inside = sum(tag != OUTSIDE for tags in sentences for tag in tags)
    return sum(len(misfits(tags, scheme)) for tags in sentences) <= max(_FEW_MISFITS, inside / 10)


def first_overlap(spans: Sequence[Span]) -> tuple[Span, Span] | None:
    """Two spans, in the order of their starts, of which the second begins inside the first; None where none do."""
    return next(((a, b) for a, b in pairwise(sorted(spans)) if b.start < a.end), None)
