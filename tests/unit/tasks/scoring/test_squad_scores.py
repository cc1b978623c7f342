"""The scores of SQuAD, by cases worked out by hand and by what must hold for any answers."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.tasks.scoring.squad import (
    exact_match,
    normalised,
    scores_1_1,
    scores_2_0,
    word_f1,
)

words = st.sampled_from(["the", "a", "cat", "sat", "Cat", "on", "mat.", "«", "-", "an", "", "É"])
answers = st.lists(words, max_size=5).map(" ".join)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("The Cat's  mat!", "cats mat"),
        ("A an THE", ""),
        ("theatre an-d a.b", "theatre and ab"),  # articles are whole words, and punctuation goes first
        ("a-the", "athe"),
        ("«quoted» — dash", "«quoted» — dash"),  # ASCII punctuation alone goes
        ("x\u00a0y\u2003z", "x y z"),
        ("the—end", "—end"),  # a word ends at a dash of Unicode
        ("İ", "i̇"),
        ("", ""),
    ],
)
def test_normalisation(answer, found):
    assert normalised(answer) == found


@pytest.mark.parametrize(
    ("prediction", "gold", "f1"),
    [
        ("the cat sat", "a cat", 2 / 3),  # 1 of 2 right, 1 of 1 found
        ("cat cat cat", "cat cat dog", 2 / 3),  # as often as they stand there
        ("dog", "cat", 0.0),
        ("New York City", "York", 0.5),
    ],
)
def test_f1_of_words(prediction, gold, f1):
    assert word_f1(prediction, gold, 0.0) == word_f1(prediction, gold, 1.0) == pytest.approx(f1)


def test_answers_that_normalise_to_nothing():
    assert word_f1("the", "!", 0.0) == 0.0, "evaluate-v1.1 divides by the words in common"
    assert word_f1("the", "!", 1.0) == 1.0, "evaluate-v2.0 calls them equal"
    assert word_f1("", "cat", 1.0) == word_f1("cat", "", 1.0) == 0.0
    assert exact_match("the", ["!"]) == 1


def test_scores_of_1_1_by_hand():
    questions = [("1", ["the cat", "a cat sat"]), ("2", ["dog"]), ("3", ["mouse"]), ("4", ["!"])]
    found = scores_1_1(questions, {"1": "Cat", "2": "a dog barks", "4": "the", "elsewhere": "x"})
    # 1: exact. 2: 1 of 2, 1 of 1. 3: missing. 4: exact, and no word in common.
    assert found == {"exact_match": 50.0, "f1": pytest.approx(100 * (1 + 2 / 3) / 4)}
    assert scores_1_1([], {}) == scores_1_1([("1", [])], {"1": "x"}) == {"exact_match": 0.0, "f1": 0.0}


def test_scores_of_2_0_by_hand():
    questions = [("1", ["the cat", "!"]), ("2", []), ("3", []), ("4", ["a dog"]), ("5", ["lost"])]
    predictions = {"1": "cat sat", "2": "", "3": "x", "4": ""}
    found = scores_2_0(questions, predictions)
    assert found == {
        "exact": 25.0, "f1": pytest.approx(100 * (2 / 3 + 1) / 4), "total": 4,
        "HasAns_exact": 0.0, "HasAns_f1": pytest.approx(100 * 2 / 3 / 2), "HasAns_total": 2,
        "NoAns_exact": 50.0, "NoAns_f1": 50.0, "NoAns_total": 2,
    }  # fmt: skip


def test_a_threshold_makes_predictions_empty():
    questions = [("1", ["cat"]), ("2", [])]
    predictions, null_scores = {"1": "cat", "2": "x"}, {"1": -3.0, "2": 2.0}
    found = scores_2_0(questions, predictions, null_scores, threshold=0.0)
    assert (found["exact"], found["NoAns_exact"]) == (100.0, 100.0)
    assert scores_2_0(questions, predictions, null_scores, threshold=2.0)["exact"] == 50.0, "above it, not at it"
    assert (found["best_exact"], found["best_exact_thresh"]) == (100.0, -3.0)


def test_the_best_threshold_by_hand():
    questions = [("1", ["cat"]), ("2", []), ("3", ["dog"]), ("4", []), ("5", ["x"])]
    predictions = {"1": "cat", "2": "no", "3": "a dog", "4": "no", "5": "y"}
    null_scores = {"1": -5.0, "2": -1.0, "3": -0.5, "4": 3.0, "5": -9.0}
    # Begins with 2 right; lets in 5 (wrong: 2), 1 (3), 2 (2), 3 (3), 4 (2). The first of the best is kept.
    found = scores_2_0(questions, predictions, null_scores)
    assert (found["best_exact"], found["best_exact_thresh"]) == (60.0, -5.0)
    nothing = scores_2_0([("1", []), ("2", ["a b"])], {"1": "x", "2": "c"}, {"1": -1.0, "2": -2.0})
    assert (nothing["best_f1"], nothing["best_f1_thresh"]) == (50.0, 0.0)
    # Of 3 and of a question of another file only the null score is there, which lets in nothing.
    null_scores = {"1": -2.0, "2": -3.0, "3": -9.0, "elsewhere": -9.0}
    article = scores_2_0([("1", ["cat"]), ("2", []), ("3", ["x"])], {"1": "cat", "2": "the"}, null_scores)
    assert (article["best_exact"], article["best_exact_thresh"]) == (50.0, 0.0), "an article alone is an answer here"


@given(prediction=answers, golds=st.lists(answers, min_size=1, max_size=3))
def test_laws_of_the_scores(prediction, golds):
    for empty, gold in itertools.product((0.0, 1.0), golds):
        f1 = word_f1(prediction, gold, empty)
        assert 0 <= f1 <= 1
        assert f1 == word_f1(gold, prediction, empty)
        assert f1 == word_f1(f"The {prediction.upper()} !", gold, empty), "case, articles, punctuation"
    # Words in another order score 1 in F1 and are no exact match.
    assert exact_match(prediction, golds) <= max(word_f1(prediction, gold, 1.0) for gold in golds)
    assert exact_match(prediction, [*golds, prediction]) == 1


with_words = st.lists(st.sampled_from(["the", "cat", "sat", "mat."]), max_size=3).map(
    lambda each: " ".join([*each, "x"])
)


@given(
    rows=st.lists(st.tuples(st.lists(with_words, max_size=2), with_words, st.integers(-50, 50)), min_size=1),
    metric=st.sampled_from(["exact", "f1"]),
)
def test_no_threshold_is_better_than_the_best(rows, metric):
    """For answers that do not normalise to nothing. Where null scores differ, a threshold gives that score."""
    questions = [(str(place), golds) for place, (golds, _, _) in enumerate(rows)]
    predictions = {str(place): row[1] for place, row in enumerate(rows)}
    null_scores = {str(place): row[2] / 10 for place, row in enumerate(rows)}
    best = scores_2_0(questions, predictions, null_scores)[f"best_{metric}"]
    every = [
        scores_2_0(questions, predictions, null_scores, threshold)[metric]
        for threshold in (min(null_scores.values()) - 1, *null_scores.values())
    ]
    if len(set(null_scores.values())) == len(null_scores):
        assert max(every) == pytest.approx(best)
    assert max(every) <= best + 1e-9


def test_the_gold_answers_of_squad_score_full_marks_against_themselves(real_data):
    """Any annotator's answer is an exact match; "" to every question of 2.0 is right where there is no answer."""
    for part in ("v1.1/dev-v1.1.json", "v2.0/dev-v2.0.json"):
        articles = json.loads(real_data(f"squad/{part}").read_text())["data"]
        asked = [each for article in articles for paragraph in article["paragraphs"] for each in paragraph["qas"]]
        questions = [(each["id"], [answer["text"] for answer in each["answers"]]) for each in asked]
        last = {name: golds[-1] if golds else "" for name, golds in questions}
        if "v1.1" in part:
            # One answer is "a", which has no word left to compare; 2.0 takes it for none.
            assert scores_1_1(questions, last) == {"exact_match": 100.0, "f1": pytest.approx(100 * 10569 / 10570)}
        else:
            assert scores_2_0(questions, last)["exact"] == pytest.approx(100 * 11872 / 11873)
            nothing = scores_2_0(questions, dict.fromkeys(last, ""))
            assert nothing["exact"] == nothing["f1"] == pytest.approx(100 * 5945 / 11873)
