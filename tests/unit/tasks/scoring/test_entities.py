"""Entity scores against nervaluate, against conlleval's rule of pairs of tags, and by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.tasks.scoring.entities import Agreement, Span, agreement_by_type, entity_metrics, overall, table
from bertsmith.tasks.tagging.schemes import spans_of

TAGS = ["O", "B-per", "I-per", "B-loc", "I-loc"]
Sides = list[list[tuple[str, str]]]


def files(tags: list[str]) -> st.SearchStrategy[Sides]:
    """Sentences of (true tag, predicted tag)."""
    pair = st.tuples(st.sampled_from(tags), st.sampled_from(tags))
    return st.lists(st.lists(pair, min_size=1, max_size=9), min_size=1, max_size=4)


def scored(sentences: Sides) -> dict[str, Agreement]:
    true, predicted = ([spans_of([pair[side] for pair in each]) for each in sentences] for side in (0, 1))
    return agreement_by_type(predicted, true)


@given(files(TAGS))
def test_scores_equal_those_of_nervaluate_in_strict_mode(sentences: Sides) -> None:
    nervaluate = pytest.importorskip("nervaluate")
    true, predicted = ([[pair[side] for pair in each] for each in sentences] for side in (0, 1))
    theirs = nervaluate.Evaluator(true, predicted, tags=["per", "loc"], loader="list").evaluate()
    by_type = scored(sentences)
    ours = entity_metrics(by_type)
    strict = theirs["overall"]["strict"]
    assert (ours["precision"], ours["recall"], ours["entity_f1"]) == pytest.approx(
        (strict.precision, strict.recall, strict.f1)
    )
    assert by_type.keys() == theirs["entities"].keys()
    for name, each in by_type.items():
        those = theirs["entities"][name]["strict"]
        assert (each.right, each.predicted, each.true) == (those.correct, those.actual, those.possible)
        assert each.f1 == pytest.approx(those.f1)


# conlleval walks through pairs of tags, with O before and behind each sentence: a phrase ends or begins between
# two tags of one type at these pairs, and at every change of type.
CUTS = {("B", "B"), ("I", "B"), ("E", "B"), ("S", "B"), ("E", "E"), ("E", "I"), ("S", "E"), ("S", "I")}
CUTS |= {(letter, "S") for letter in "BIES"}


def walked(sentences: Sides) -> tuple[dict[str, int], dict[str, int], dict[str, int]]:
    """conlleval's counts of correct, found and true phrases of each type: one walk over both columns at once."""
    right: dict[str, int] = {}
    found: dict[str, int] = {}
    wanted: dict[str, int] = {}
    for sentence in sentences:
        both = ""  # the type of a phrase that has begun on both sides at once and has not ended on either
        before = ("O", "O")
        for tags in [*sentence, ("O", "O")]:
            (ends_true, begins_true), (ends_found, begins_found) = map(border, before, tags)
            if both and (ends_true or ends_found):
                if ends_true and ends_found:
                    right[both] = right.get(both, 0) + 1
                both = ""
            if begins_true and begins_found and tags[0][2:] == tags[1][2:]:
                both = tags[0][2:]
            for begins, tag, counts in ((begins_true, tags[0], wanted), (begins_found, tags[1], found)):
                if begins:
                    counts[tag[2:]] = counts.get(tag[2:], 0) + 1
            before = tags
    return right, found, wanted


def border(before: str, tag: str) -> tuple[bool, bool]:
    """Whether a phrase ends between two tags, and whether one begins."""
    apart = before[2:] != tag[2:] or (before[0], tag[0]) in CUTS
    return apart and before != "O", apart and tag != "O"


@given(files([*TAGS, "E-per", "S-per", "E-loc", "S-loc"]))
def test_counts_equal_conllevals_walk_over_pairs_of_tags(sentences: Sides) -> None:
    right, found, wanted = walked(sentences)
    by_type = scored(sentences)
    assert by_type.keys() == found.keys() | wanted.keys()
    for name, each in by_type.items():
        assert (each.right, each.predicted, each.true) == (right.get(name, 0), found.get(name, 0), wanted.get(name, 0))


@pytest.mark.parametrize(
    ("true", "predicted", "counts"),
    [
        # The example in seqeval's README: F1 0.5.
        (
            "O O O B-MISC I-MISC I-MISC O | B-PER I-PER O",
            "O O B-MISC I-MISC I-MISC I-MISC O | B-PER I-PER O",
            (1, 2, 2),
        ),
        ("B-per I-per O", "I-per I-per O", (1, 1, 1)),  # a B that is missing costs nothing where nothing stands before
        ("B-per B-per", "B-per I-per", (0, 1, 2)),
        ("I-per B-per I-per", "I-per B-per I-per", (2, 2, 2)),  # IOB1
        ("B-per I-per I-per", "B-per I-loc I-per", (0, 3, 1)),  # a chunk that changes its type is three
        ("B-per I-per | I-per O", "B-per I-per | I-per O", (2, 2, 2)),  # none crosses a sentence's end
        ("B-per I-per I-per", "B-per I-per O", (0, 1, 1)),  # a part is worth nothing
        ("B-per I-per", "B-loc I-loc", (0, 1, 1)),  # nor is the right span of another type
        ("O O", "O O", (0, 0, 0)),
        ("O O", "B-per O", (0, 1, 0)),
        ("B-per O", "O O", (0, 0, 1)),
    ],
)
def test_cases_by_hand(true: str, predicted: str, counts: tuple[int, int, int]) -> None:
    sentences = [
        list(zip(ours.split(), theirs.split(), strict=True))
        for ours, theirs in zip(true.split("|"), predicted.split("|"), strict=True)
    ]
    assert overall(scored(sentences)) == Agreement(*counts)


# The published example of conlleval (clips.uantwerpen.be/conll2000/chunking/output.html): 961 tokens, of which the page
# shows nine. Of each type the page has the number of phrases that were found, with precision, recall and F1 in percent;
# those that are correct and true follow, as no others round to these, and six ADJP are in its text.
PUBLISHED = {
    "ADJP": (Agreement(0, 1, 6), (0.00, 0.00, 0.00)),
    "ADVP": (Agreement(5, 11, 8), (45.45, 62.50, 52.63)),
    "NP": (Agreement(206, 317, 262), (64.98, 78.63, 71.16)),
    "PP": (Agreement(89, 107, 90), (83.18, 98.89, 90.36)),
    "SBAR": (Agreement(2, 3, 6), (66.67, 33.33, 44.44)),
    "VP": (Agreement(69, 100, 87), (69.00, 79.31, 73.80)),
}


def test_figures_are_those_of_conllevals_published_example() -> None:
    by_type = {name: found for name, (found, _) in PUBLISHED.items()}
    assert overall(by_type) == Agreement(371, 539, 459)
    for found, percent in PUBLISHED.values():
        assert [round(100 * each, 2) for each in (found.precision, found.recall, found.f1)] == list(percent)
    figures = entity_metrics(by_type)
    assert [round(100 * figures[name], 2) for name in ("precision", "recall", "entity_f1")] == [68.83, 80.83, 74.35]


def test_phrases_of_a_published_sentence_are_those_that_conlleval_counts() -> None:
    """The first sentence of that example's data, as the README of kaniblu/conlleval shows it with the script's report:
    15 phrases, 16 found, 14 correct. A phrase that was found begins with I where nothing stands before it."""
    true = (
        "B-NP I-NP I-NP B-NP I-NP I-NP B-VP B-NP B-VP B-NP I-NP I-NP B-VP B-NP I-NP B-PP B-NP I-NP B-VP I-VP B-NP I-NP"
    )
    found = (
        "I-NP I-NP I-NP B-NP I-NP I-NP B-VP B-NP B-VP B-NP I-NP I-NP B-VP B-NP I-NP B-PP I-NP I-NP B-PP I-VP I-NP I-NP"
    )
    end = "B-PP {}-NP B-NP I-NP I-NP O"
    sides = (f"{true} {end.format('B')}".split(), f"{found} {end.format('I')}".split())
    assert len(sides[0]) == len(sides[1]) == 28
    assert round(100 * sum(map(str.__eq__, *sides)) / 28, 2) == 82.14
    by_type = agreement_by_type([spans_of(sides[1])], [spans_of(sides[0])])
    assert by_type == {"NP": Agreement(9, 9, 9), "PP": Agreement(2, 3, 2), "VP": Agreement(3, 4, 4)}
    figures = entity_metrics(by_type)
    assert [round(100 * figures[name], 2) for name in ("precision", "recall", "entity_f1")] == [87.50, 93.33, 90.32]


def test_metrics_of_all_entities_and_of_the_mean_type() -> None:
    by_type = {"loc": Agreement(3, 4, 5), "per": Agreement(0, 0, 2), "none": Agreement(0, 1, 0)}
    found = entity_metrics(by_type)
    assert found["precision"] == pytest.approx(3 / 5)
    assert found["recall"] == pytest.approx(3 / 7)
    assert found["entity_f1"] == pytest.approx(2 * 3 / (5 + 7))
    assert found["macro_f1"] == pytest.approx(2 * 3 / 9 / 3)
    assert entity_metrics({}) == {"entity_f1": 0, "precision": 0, "recall": 0, "macro_f1": 0}


def test_the_table_has_a_line_for_each_type_and_for_all() -> None:
    lines = table(agreement_by_type([[Span(0, 1, "per"), Span(2, 3, "loc")]], [[Span(0, 1, "per")]]))
    assert [line.split()[0] for line in lines] == ["type", "loc", "per", "all"]
    assert lines[2].split() == ["per", "1.0000", "1.0000", "1.0000", "1", "1"]
    assert lines[3].split() == ["all", "0.5000", "1.0000", "0.6667", "1", "2"]


def test_texts_that_are_not_as_many_as_truths_are_our_bug() -> None:
    with pytest.raises(ValueError, match="zip"):
        agreement_by_type([[]], [[], []])
