"""What the best answers to questions are worth, and the files that SQuAD's official scripts read of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bertsmith.tasks.answering.best import Best
from bertsmith.tasks.reading.records import Record
from bertsmith.tasks.scoring.resampling import Bools, Figures, Floats, Ints, mean_figures
from bertsmith.tasks.scoring.squad import Gold, each_1_1, each_2_0, scores_1_1, scores_2_0


def figures(best: Sequence[Best], records: Sequence[Record], threshold: float) -> dict[str, float]:
    """exact_match and f1 of the answers to the records, in percent.

    By the rules of 1.1 where every record has an answer and `best` no null scores, else by those of 2.0: then also of
    the questions with (HasAns) and without an answer (NoAns). With null scores also best_exact and best_f1, those under
    the best threshold on them, and that threshold.
    """
    questions, chosen = _questions(records), _chosen(best, [threshold] * len(best))
    if all_have_answers(best, records):
        return scores_1_1(questions, chosen)
    found = scores_2_0(questions, chosen)
    if _has_null(best):
        at_best = scores_2_0(questions, *_spans(best))
        found |= {name: value for name, value in at_best.items() if name.startswith("best_")}
    return named_as_1_1(found)


def named_as_1_1(found: Mapping[str, float]) -> dict[str, float]:
    """Figures of 2.0 under the names of those of 1.1, where these have them, without the numbers of questions."""
    figures = {name: value for name, value in found.items() if not name.endswith("total")}
    return {"exact_match": figures.pop("exact"), **figures}


def all_have_answers(best: Sequence[Best], records: Sequence[Record]) -> bool:
    """Whether the rules of 1.1 hold."""
    return not _has_null(best) and all(record.label for record in records)


def _has_null(best: Sequence[Best]) -> bool:
    return any(each.null_score is not None for each in best)


def scores_of_each(best: Sequence[Best], records: Sequence[Record], thresholds: Floats) -> Floats:
    """exact match and F1 of the answer to each record, from 0 to 1: float64[N, 2]. thresholds: float64[N]."""
    questions, chosen = _questions(records), _chosen(best, thresholds)
    each = each_1_1(questions, chosen) if all_have_answers(best, records) else each_2_0(questions, chosen).values()
    return np.array([*each], dtype=np.float64)


def figures_of_each(scores: Floats, answerable: Bools | None) -> Figures:
    """Those of `figures` that need no threshold of their own, in percent. answerable: of each question, by the rules of
    2.0; None by those of 1.1."""
    found = mean_figures(("exact_match", "f1"), 100.0 * scores)
    for prefix, among in () if answerable is None else (("HasAns", answerable), ("NoAns", ~answerable)):
        if among.any():
            found = found.and_also(mean_figures((f"{prefix}_exact", f"{prefix}_f1"), 100.0 * scores, among))
    return found


def thresholds_of_others(best: Sequence[Best], records: Sequence[Record], fold: Ints) -> Floats:
    """For each record the threshold that is tuned on the records of the other folds, or on all where there is one fold:
    float64[N]."""
    found, numbers, each = np.empty(len(best)), np.unique(fold), _f1_of_each(best, records)
    for number in numbers:
        others = each[:, fold != number] if len(numbers) > 1 else each
        found[fold == number], _ = _tuned(*others)
    return found


def tuned_threshold(best: Sequence[Best], records: Sequence[Record]) -> tuple[float, float]:
    """The threshold on null scores whose F1 is best, and that F1 in percent; of equals the lowest.

    It is in the middle between two questions' null scores, so that rounding moves neither to its other side; the
    official script's is the lower one of the two.
    """
    return _tuned(*_f1_of_each(best, records))


def _f1_of_each(best: Sequence[Best], records: Sequence[Record]) -> Floats:
    """Of each record the null score, and the F1 from 0 to 1 of the best span and of no answer: float64[3, N]."""
    spans, null_scores = _spans(best)
    answered = [f1 for _, f1 in each_2_0(_questions(records), spans).values()]
    return np.array([list(null_scores.values()), answered, [not record.label for record in records]], dtype=np.float64)


def _tuned(null_scores: Floats, answered: Floats, not_answered: Floats) -> tuple[float, float]:
    """`tuned_threshold`, of what `_f1_of_each` gives."""
    scores, places = np.unique(null_scores, return_inverse=True)
    f1 = not_answered.sum() + np.cumsum(np.append(0.0, np.bincount(places, answered - not_answered)))
    edges = np.concatenate(([scores[0] - 2.0], scores, [scores[-1] + 2.0]))
    low = int(f1.argmax())
    return float(edges[low : low + 2].mean()), 100.0 * float(f1[low]) / len(answered)


def prediction_files(best: Sequence[Best], records: Sequence[Record], threshold: float) -> dict[str, dict[str, Any]]:
    """What run_squad.py writes, by the names of its files; each by the ids of the questions.

    The answers; the best answers of each question; and, where there are null scores, these.
    """
    keys = keys_of(records)
    values: dict[str, list[Any]] = {
        "predictions.json": [each.chosen(threshold).text for each in best],
        "nbest_predictions.json": [each.as_json() for each in best],
    }
    if _has_null(best):
        values["null_odds.json"] = [each.null_score for each in best]
    return {name: dict(zip(keys, each, strict=True)) for name, each in values.items()}


def keys_of(records: Sequence[Record]) -> list[str]:
    """What the files call each record: its id, its place where it has none, and both where an id stands twice."""
    ids = [record.id or record.where for record in records]
    counts = Counter(ids)
    return [f"{name} ({record.where})" if counts[name] > 1 else name for name, record in zip(ids, records, strict=True)]


def _questions(records: Sequence[Record]) -> list[Gold]:
    """The gold answers of each record by its number, as ids may be missing, or stand twice."""
    return [(str(number), [gold.text for gold in record.label]) for number, record in enumerate(records)]


def _chosen(best: Sequence[Best], thresholds: Iterable[float]) -> dict[str, str]:
    """The answer to each question."""
    each = enumerate(zip(best, thresholds, strict=True))
    return {str(number): one.chosen(threshold).text for number, (one, threshold) in each}


def _spans(best: Sequence[Best]) -> tuple[dict[str, str], dict[str, float]]:
    """The best span of each question, whatever the threshold, and its null score."""
    spans = {str(number): each.span.text if each.span is not None else "" for number, each in enumerate(best)}
    return spans, {str(number): each.null_score or 0.0 for number, each in enumerate(best)}
