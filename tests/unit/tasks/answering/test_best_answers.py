"""The best spans over the windows of a question, beside a plain reading of the reference's rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.tasks.answering.best import Best, Guess, SpanRules, best_of
from bertsmith.tasks.answering.figures import figures, thresholds_of_others, tuned_threshold
from bertsmith.tasks.answering.gold import Gold
from bertsmith.tasks.answering.windows import has_most_context, windows_of
from bertsmith.tasks.reading.records import Record
from bertsmith.tokens.tokenizer import Tokenizer

WORDS = [f"w{number}" for number in range(12)]
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", *WORDS, "##s"]
TOKENIZER = Tokenizer.from_vocabulary(PIECES, lowercase=True)
contexts = st.lists(st.sampled_from([*WORDS, "w1s", "W2", "?w3"]), max_size=40).map(" ".join)


def windows(context, max_length=16, stride=5):
    return windows_of([Record("who", context, None, "row 1")], TOKENIZER, max_length, stride, 8)


def scores_of(found, seed, ties=False):
    draw = np.random.default_rng(seed)
    scores = [draw.normal(0, 2, (len(each), 2)).astype(np.float32) for each in found.ids]
    return [np.round(each) for each in scores] if ties else scores


def slow_best(found, scores, rules):
    """(text, start logit, end logit) of the answers that are kept, best first, and the null score; span by span."""
    passage, spans, nulls = found.passages[0], [], []
    flags = has_most_context(found.first_pieces, found.counts)
    for window, those in enumerate(scores):
        start, end = those.astype(float).T.tolist()
        nulls.append((start[0] + end[0], start[0], end[0]))
        first = int(found.first_segments[window])
        context = range(first, len(start) - 1)
        best = [sorted(range(len(each)), key=each.__getitem__, reverse=True)[: rules.n_best] for each in (start, end)]
        for i in best[0]:
            for j in best[1]:
                if i in context and j in context and i <= j < i + rules.max_answer_length and flags[window][i - first]:
                    shift = int(found.first_pieces[window]) - first
                    begin, after = passage.characters(i + shift, j + shift)
                    spans.append((passage.text[begin:after], start[i], end[j]))
    null = min(nulls, key=lambda each: each[0])
    if rules.unanswerable:
        spans.append(("", *null[1:]))
    spans.sort(key=lambda each: each[1] + each[2], reverse=True)
    kept: list[tuple[str, float, float]] = []
    for span in spans:
        if len(kept) < rules.n_best and span[0] not in [each[0] for each in kept]:
            kept.append(span)
    if rules.unanswerable and "" not in [each[0] for each in kept]:
        kept.append(("", *null[1:]))
    above = [each for each in kept if each[0]] or [("", 0.0, 0.0)]
    return kept or [("", 0.0, 0.0)], null[0] - above[0][1] - above[0][2] if rules.unanswerable else None


@given(
    context=contexts,
    seed=st.integers(0, 2**32 - 1),
    ties=st.booleans(),
    n_best=st.integers(1, 20),
    longest=st.integers(1, 30),
    unanswerable=st.booleans(),
)
def test_the_best_are_those_of_every_span_by_itself(context, seed, ties, n_best, longest, unanswerable):
    found = windows(context)
    scores = scores_of(found, seed, ties)
    rules = SpanRules(n_best, longest, unanswerable)
    best = best_of(found, 0, scores, rules)
    kept, null_score = slow_best(found, scores, rules)
    assert [(each.text, each.start_logit, each.end_logit) for each in best.guesses] == kept
    assert best.null_score == null_score
    assert sum(each.probability for each in best.guesses) == pytest.approx(1)
    first = best.guesses[0]
    for each in best.guesses:
        assert each.probability == pytest.approx(first.probability * math.exp(each.score - first.score))
        assert (each.text == "") == (each.start is None)
        if each.text:
            assert context[each.start : each.end] == each.text


@given(context=st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join), seed=st.integers(0, 99), v2=st.booleans())
def test_joining_the_windows_of_a_short_context_changes_nothing(context, seed, v2):
    """With one window, whatever the stride and the length, the answers are the same."""
    found = windows(context)
    scores = scores_of(found, seed)
    assert len(scores) == 1
    for max_length, stride in ((16, 1), (16, 50), (40, 5), (13 + 3, 5)):
        assert best_of(windows(context, max_length, stride), 0, scores, SpanRules(unanswerable=v2)) == best_of(
            found, 0, scores, SpanRules(unanswerable=v2)
        )


def made(context, start, end, null=(0.0, 0.0), **rules):
    """Scores that are high at one start and one end; the tokens are [CLS] who [SEP] context [SEP]."""
    found = windows(context, 40)
    scores = np.full((len(found.ids[0]), 2), -9.0, dtype=np.float32)
    scores[3 + start, 0], scores[3 + end, 1] = 4.0, 3.0
    scores[0] = null
    return best_of(found, 0, [scores], SpanRules(**rules))


def test_the_likeliest_span_is_the_answer():
    best = made("w1 w2  w3 w4", 1, 2)
    assert (best.span.text, best.span.start, best.span.end) == ("w2  w3", 3, 9)
    assert (best.span.score, best.null_score) == (7.0, None)
    assert best.chosen(0.0) == best.guesses[0] == best.span
    assert best.as_json()[0] == {
        "text": "w2  w3", "probability": best.span.probability, "start_logit": 4.0, "end_logit": 3.0,
    }  # fmt: skip


def test_an_end_before_the_start_and_a_long_span_are_not_answers():
    assert made("w1 w2 w3", 2, 0).span.text != "w1 w2 w3"
    assert made("w1 w2 w3 w4", 0, 3, max_answer_length=3).span.text != "w1 w2 w3 w4"
    assert made("w1 w2 w3 w4", 0, 3, max_answer_length=4).span.text == "w1 w2 w3 w4"


def test_the_question_is_no_answer():
    assert made("w1 w2", -2, 1).span.text != "who w1 w2"


def test_no_answer_is_chosen_above_the_threshold_alone():
    best = made("w1 w2 w3", 0, 0, null=(5.0, 4.5), unanswerable=True)
    assert best.null_score == 2.5
    assert best.chosen(2.4).text == ""
    assert best.chosen(2.5).text == "w1", "at the threshold there is an answer"
    assert best.guesses[0].text == ""
    assert made("w1 w2 w3", 0, 0, null=(5.0, 4.5)).guesses[0].text == "w1", "every question has an answer"


def test_the_null_score_is_the_lowest_of_the_windows():
    found = windows(" ".join(WORDS), 12, 4)
    scores = scores_of(found, 1)
    for place, each in enumerate(scores):
        each[0] = (3.0 - place, 1.0)
    best = best_of(found, 0, scores, SpanRules(unanswerable=True))
    (none,) = [each for each in best.guesses if not each.text]
    assert (none.start_logit, none.end_logit) == (3.0 - (len(scores) - 1), 1.0)


def test_one_best_looks_at_the_likeliest_start_and_end_alone():
    assert [each.text for each in made("w1 w2", 0, 0, unanswerable=True, n_best=1).guesses] == ["w1", ""]
    assert [each.text for each in made("w1 w2", 0, 0, null=(9.0, 9.0), unanswerable=True, n_best=1).guesses] == [""]


@pytest.mark.parametrize("unanswerable", [False, True])
def test_where_no_span_is_allowed_there_is_no_answer(unanswerable):
    found = windows("\x01")
    best = best_of(found, 0, scores_of(found, 0), SpanRules(unanswerable=unanswerable))
    assert [each.text for each in best.guesses] == [""]
    assert best.chosen(1e9).text == ""
    assert best.span is None


questions = st.tuples(st.sampled_from(["cat", "dog", "a cat sat", "the"]), st.sampled_from([None, "cat", "dog"]))


def answered(drawn):
    best = [Best((Guess(text, 0, 1, 0.0, 0.0), Guess("", None, None, null, 0.0)), null) for (text, _), null in drawn]
    return best, [Record("q", "c", () if gold is None else (Gold(gold),), "row 1") for (_, gold), _ in drawn]


@given(st.lists(st.tuples(questions, st.integers(-2, 2).map(float)), min_size=1, max_size=8))
def test_no_threshold_is_better_than_the_tuned_one(drawn):
    """Of questions with equal null scores too, such as copies, which no threshold parts."""
    best, records = answered(drawn)
    threshold, f1 = tuned_threshold(best, records)
    assert threshold not in {null for _, null in drawn}
    assert f1 == pytest.approx(figures(best, records, threshold)["f1"])
    assert f1 >= max(figures(best, records, each / 2)["f1"] for each in range(-6, 7)) - 1e-9


@given(st.lists(st.tuples(questions, st.integers(-2, 2).map(float), st.integers(0, 2)), min_size=1, max_size=8))
def test_a_question_gets_the_threshold_that_is_tuned_on_the_other_folds(drawn):
    best, records = answered([each[:2] for each in drawn])
    fold = np.array([each[2] for each in drawn])
    for number, found in zip(fold, thresholds_of_others(best, records, fold), strict=True):
        others = np.flatnonzero(fold != number) if len(set(fold)) > 1 else range(len(drawn))
        assert found == tuned_threshold([best[each] for each in others], [records[each] for each in others])[0]
