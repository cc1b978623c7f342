"""Scores of answers to SQuAD's questions, equal to those of evaluate-v1.1.py and evaluate-v2.0.py on any predictions.

Questions are (id, texts of the gold answers) in the order of the file; scores are in percent.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

Gold = tuple[str, Sequence[str]]
ANSWERED, UNANSWERABLE = "with an answer", "without an answer"
"""What questions are called that have one, and that have none."""

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@lru_cache(maxsize=1 << 18)
def normalised(answer: str) -> str:
    """Lower case, without ASCII punctuation and the words a, an and the, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(prediction: str, golds: Iterable[str]) -> int:
    """1 where the normalised prediction is one of the normalised gold answers, else 0."""
    found = normalised(prediction)
    return int(any(found == normalised(gold) for gold in golds))


def word_f1(prediction: str, gold: str, both_empty: float) -> float:
    """F1 of the normalised words, each counted as often as it stands there. both_empty: where neither has a word."""
    found, wanted = normalised(prediction).split(), normalised(gold).split()
    if not found or not wanted:
        return both_empty if found == wanted else 0.0
    same = sum((Counter(found) & Counter(wanted)).values())
    if not same:
        return 0.0
    precision, recall = same / len(found), same / len(wanted)
    return (2 * precision * recall) / (precision + recall)


def each_1_1(questions: Iterable[Gold], predictions: Mapping[str, str]) -> list[tuple[float, float]]:
    """(exact match, F1) of each question, from 0 to 1; one without a prediction scores 0, as does one without a gold
    answer."""
    found = []
    for name, golds in questions:
        given = predictions.get(name)
        f1 = 0.0 if given is None else max((word_f1(given, gold, 0.0) for gold in golds), default=0.0)
        found.append((0.0 if given is None else float(exact_match(given, golds)), f1))
    return found


def scores_1_1(questions: Iterable[Gold], predictions: Mapping[str, str]) -> dict[str, float]:
    """exact_match and f1 over all questions."""
    each = each_1_1(questions, predictions)
    exact, f1 = (sum(score[side] for score in each) for side in (0, 1))
    return {"exact_match": 100.0 * exact / max(1, len(each)), "f1": 100.0 * f1 / max(1, len(each))}


def each_2_0(questions: Iterable[Gold], predictions: Mapping[str, str]) -> dict[str, tuple[float, float]]:
    """(exact match, F1) of each question that has a prediction, from 0 to 1."""
    found = {}
    for name, golds in questions:
        if name in predictions:
            wanted = [gold for gold in golds if normalised(gold)] or [""]
            f1 = max(word_f1(predictions[name], gold, 1.0) for gold in wanted)
            found[name] = (float(exact_match(predictions[name], wanted)), f1)
    return found


def scores_2_0(
    questions: Sequence[Gold],
    predictions: Mapping[str, str],
    null_scores: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """exact, f1 and total over the questions that have a prediction, and the same of those with (HasAns) and without
    (NoAns) an answer.

    null_scores: how little likely an answer is, for each prediction; above the `threshold` it counts as "". With them
    come best_exact and best_f1, the scores under the best thresholds, with best_exact_thresh and best_f1_thresh.
    The script fails where a question has no prediction; here HasAns and NoAns, too, are those that have one.
    """
    answerable = {name: bool(golds) for name, golds in questions}
    each = each_2_0(questions, predictions)
    plain = [{name: scores[side] for name, scores in each.items()} for side in (0, 1)]
    exact, f1 = (
        {
            name: float(not answerable[name]) if null_scores and null_scores[name] > threshold else score
            for name, score in scores.items()
        }
        for scores in plain
    )
    groups = {
        "": list(exact),
        "HasAns_": [name for name, has in answerable.items() if has and name in exact],
        "NoAns_": [name for name, has in answerable.items() if not has and name in exact],
    }
    found: dict[str, float] = {}
    for prefix, names in groups.items():
        if names or not prefix:
            total = max(1, len(names))
            found[f"{prefix}exact"] = 100.0 * sum(exact[name] for name in names) / total
            found[f"{prefix}f1"] = 100.0 * sum(f1[name] for name in names) / total
            found[f"{prefix}total"] = len(names)
    if null_scores is not None:
        for metric, scores in zip(("exact", "f1"), plain, strict=True):
            best, at = _best_threshold(scores, answerable, predictions, null_scores)
            found |= {f"best_{metric}": best, f"best_{metric}_thresh": at}
    return found


def _best_threshold(
    scores: Mapping[str, float],
    answerable: Mapping[str, bool],
    predictions: Mapping[str, str],
    null_scores: Mapping[str, float],
) -> tuple[float, float]:
    """(The best score, its threshold), as the script finds them: it starts where no question is answered, at 0, and
    lets the predictions in, the surest first. Equal null scores are let in one by one, although no threshold parts
    them, and a prediction that normalises to nothing counts as wrong where there is no answer."""
    score: float = sum(not answerable[name] for name in scores)
    best, threshold = score, 0.0
    for name in sorted(null_scores, key=null_scores.__getitem__):
        if name in scores:
            wrong = -1 if predictions[name] else 0
            score += scores[name] if answerable[name] else wrong
            if score > best:
                best, threshold = score, null_scores[name]
    return 100.0 * best / max(1, len(scores)), threshold
