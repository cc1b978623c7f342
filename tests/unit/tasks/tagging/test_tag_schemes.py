"""Tags and the spans that they stand for: every scheme, and what fits none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.tasks.scoring.entities import Span
from bertsmith.tasks.tagging.schemes import (
    BIO,
    SCHEMES,
    first_overlap,
    misfits,
    scheme_of,
    spans_of,
    split_tag,
    tags_of,
)

BY_NAME = {scheme.name: scheme for scheme in SCHEMES}
LABELS = st.sampled_from(["per", "loc", "work-of-art"])


@st.composite
def sentences(draw: st.DrawFn) -> tuple[list[Span], int]:
    """Spans that do not overlap, some of them touching, and how many words there are."""
    spans, end = [], 0
    for _ in range(draw(st.integers(0, 5))):
        start = end + draw(st.integers(0, 2))
        end = start + draw(st.integers(1, 4))
        spans.append(Span(start, end, draw(LABELS)))
    return spans, end + draw(st.integers(0, 2))


@pytest.mark.parametrize("name", BY_NAME)
@given(sentences())
def test_spans_to_tags_to_spans_is_the_identity(name: str, sentence: tuple[list[Span], int]) -> None:
    spans, words = sentence
    tags = tags_of(spans, words, BY_NAME[name])
    assert len(tags) == words
    assert spans_of(tags) == spans
    assert misfits(tags, BY_NAME[name]) == []


@given(st.lists(st.sampled_from(["O", *(f"{letter}-{kind}" for letter in "BILUESMW" for kind in "xy")])))
def test_any_tags_read_as_spans_stay_those_spans_in_bio(tags: list[str]) -> None:
    spans = spans_of(tags)
    assert first_overlap(spans) is None
    assert spans_of(tags_of(spans, len(tags))) == spans
    assert sorted(word for span in spans for word in range(span.start, span.end)) == [
        place for place, tag in enumerate(tags) if tag != "O"
    ]


TWO = [Span(0, 2, "per"), Span(2, 3, "per"), Span(4, 7, "loc")]


@pytest.mark.parametrize(
    ("name", "tags"),
    [
        ("BIO", "B-per I-per B-per O B-loc I-loc I-loc"),
        ("IOB1", "I-per I-per B-per O I-loc I-loc I-loc"),
        ("IOBES", "B-per E-per S-per O B-loc I-loc E-loc"),
        ("BILOU", "B-per L-per U-per O B-loc I-loc L-loc"),
        ("BMEWO", "B-per E-per W-per O B-loc M-loc E-loc"),
        ("BMES", "B-per E-per S-per O B-loc M-loc E-loc"),
    ],
)
def test_a_scheme_is_recognised_and_read(name: str, tags: str) -> None:
    assert tags_of(TWO, 7, BY_NAME[name]) == tags.split()
    assert scheme_of([tags.split()]).name == name
    assert spans_of(tags.split()) == TWO


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("O I-per I-per O", [(1, 3, "per")]),  # begins without B
        ("I-per O", [(0, 1, "per")]),
        ("B-per I-loc I-loc", [(0, 1, "per"), (1, 3, "loc")]),  # changes its type
        ("I-per I-loc", [(0, 1, "per"), (1, 2, "loc")]),
        ("B-per B-per", [(0, 1, "per"), (1, 2, "per")]),
        ("B-per I-per B-loc I-loc", [(0, 2, "per"), (2, 4, "loc")]),
        ("E-per E-per", [(0, 1, "per"), (1, 2, "per")]),  # ends that nothing begins
        ("B-per E-per I-per", [(0, 2, "per"), (2, 3, "per")]),
        ("S-per I-per", [(0, 1, "per"), (1, 2, "per")]),
        ("B-per I-per S-per", [(0, 2, "per"), (2, 3, "per")]),
        ("B-per I-per", [(0, 2, "per")]),  # never ends
        ("O O", []),
        ("", []),
    ],
)
def test_tags_that_fit_no_scheme_are_read_as_conlleval_reads_them(tags: str, spans: list[tuple[int, int, str]]) -> None:
    assert spans_of(tags.split()) == [Span(*span) for span in spans]


def test_words_whose_tags_do_not_fit_are_named() -> None:
    tags = ["O", "I-per", "I-per", "O", "B-loc", "I-per"]
    assert misfits(tags, BIO) == [1, 5]
    assert misfits(tags, BY_NAME["IOB1"]) == [4]
    assert misfits(["O", "O"], BIO) == []


def test_the_scheme_is_the_one_that_the_fewest_tags_do_not_fit() -> None:
    mostly_bio = [["B-per", "I-per", "O"]] * 9 + [["I-per", "O"]]
    assert scheme_of(mostly_bio) is BIO
    assert scheme_of([["I-per", "O", "I-per"], ["I-per", "B-per"]]).name == "IOB1"
    assert scheme_of([["O", "O"]]) is BIO
    bio_or_two_others = [["B-per", "M-per", "I-per"]]
    assert scheme_of(bio_or_two_others) is scheme_of(bio_or_two_others, BY_NAME["IOB1"]) is BIO
    assert scheme_of(bio_or_two_others, BY_NAME["BMES"]).name == "BMES"
    assert scheme_of([["B-per", "L-per", "E-per"]]).name == "BILOU"  # no scheme has both letters
    assert scheme_of([*mostly_bio, ["S-per", "O"]]) is BIO, "one letter of another scheme is a fault of its word"


def test_tags_without_a_type_are_of_one_type() -> None:
    """As BioBERT's files have them, with one kind of entity each."""
    assert spans_of(["B", "I", "O", "B"]) == [Span(0, 2, "entity"), Span(3, 4, "entity")]
    assert misfits(["B", "I", "O", "B"], BIO) == []
    assert scheme_of([["B", "I", "O", "I"], ["B", "O"]]) is BIO


@pytest.mark.parametrize("tag", ["", "b-per", "B-", "Bper", "B_per", "X-per", "NN", "0", "O-per", "B- per"])
def test_what_is_not_a_tag_of_a_span(tag: str) -> None:
    with pytest.raises(ValueError, match="not a tag of a span"):
        split_tag(tag)


def test_overlaps_are_found_at_any_distance() -> None:
    long, inner, touching = Span(0, 10, "a"), Span(8, 9, "b"), Span(10, 12, "a")
    assert first_overlap([touching, inner, Span(1, 2, "c"), long]) == (long, Span(1, 2, "c"))
    assert first_overlap([long, touching]) is None
