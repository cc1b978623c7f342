"""The best spans of a question over all windows of its context, and the choice between them and no answer."""

from __future__ import annotations

import weakref
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.tasks.answering.passages import Flags, Ints, Passage
from bertsmith.tasks.answering.windows import Windows, has_most_context
from bertsmith.tasks.scoring.calibration import probabilities

Floats = NDArray[np.float32]
_Span = tuple[str, int | None, int | None, float, float]
"""The first fields of a `Guess`."""


@dataclass(frozen=True)
class SpanRules:
    """n_best: starts and ends that are looked at in a window, and answers that are kept. max_answer_length: pieces of
    an answer. unanswerable: whether a question may have no answer."""

    n_best: int = 20
    max_answer_length: int = 30
    unanswerable: bool = False


@dataclass(frozen=True)
class Guess:
    """An answer: context[start:end], or "" for none, which has no place. probability: among the best."""

    text: str
    start: int | None
    end: int | None
    start_logit: float
    end_logit: float
    probability: float = 0.0

    @property
    def score(self) -> float:
        """Before the softmax."""
        return self.start_logit + self.end_logit


@dataclass(frozen=True)
class Best:
    """The answers to a question, the best first.

    guesses: those that are kept, no text twice; one of them is "" where a question may have no answer, and where no
    span is allowed. null_score: by how much the score of "" is above that of the best span; None where every question
    has an answer.
    """

    guesses: tuple[Guess, ...]
    null_score: float | None = None

    @property
    def span(self) -> Guess | None:
        """The best that is not ""; None where no span is allowed."""
        return next((each for each in self.guesses if each.text), None)

    def chosen(self, threshold: float) -> Guess:
        """The answer to give: "" if its score is more than `threshold` above the best span's."""
        if self.span is None or (self.null_score is not None and self.null_score > threshold):
            return next(each for each in self.guesses if not each.text)
        return self.span

    def as_json(self) -> list[dict[str, Any]]:
        """As nbest_predictions.json has them."""
        names = ("text", "probability", "start_logit", "end_logit")
        return [{name: getattr(each, name) for name in names} for each in self.guesses]


_FOUND: dict[tuple[int, int, SpanRules], tuple[Windows, list[Best]]] = {}
"""By their scores, as long as these are there: what tunes, measures and reports asks for the same answers."""


def all_best(windows: Windows, scores: Floats, rules: SpanRules) -> list[Best]:
    """`best_of` each record. scores: float32[T, 2], of the tokens of all windows, which stay as they are."""
    key = id(scores), id(windows), rules
    if key not in _FOUND:
        each = np.split(scores, np.cumsum(windows.lengths)[:-1])
        records = range(len(windows.passages))
        best = [best_of(windows, one, [each[member] for member in windows.of_record(one)], rules) for one in records]
        _FOUND[key] = windows, best
        weakref.finalize(scores, _FOUND.pop, key, None)
    return _FOUND[key][1]


def best_of(windows: Windows, record: int, scores: list[Floats], rules: SpanRules) -> Best:
    """The best answers to the question of a record.

    scores: float32[length, 2] of each window of the record, the logits of an answer's start and end at each token.
    A span begins at one of the `n_best` likeliest starts of a window, where the piece has the most context, and ends at
    one of its likeliest ends. The score of no answer is that of [CLS], in the window where it is lowest.
    """
    members = np.array(windows.of_record(record))
    passage = windows.passages[record]
    begins, counts = windows.first_pieces[members], windows.counts[members]
    spans, logits = [], []
    for flags, member, those in zip(has_most_context(begins, counts), members, scores, strict=True):
        first = int(windows.first_segments[member])
        found = _spans(those, first, flags, rules)
        spans.append(found - first + windows.first_pieces[member])
        logits.append(those[found, [0, 1]].astype(np.float64))
    null = _null(scores) if rules.unanswerable else None
    return _ranked(passage, np.concatenate(spans), np.concatenate(logits), null, rules.n_best)


def _spans(scores: Floats, first: int, flags: Flags, rules: SpanRules) -> Ints:
    """The first and last tokens of the spans of a window that the rules allow, the likelier starts first: int64[N, 2].

    first: the token where the context begins. flags: bool[count], whether a span may begin at a piece of it.
    """
    # The order of Python's sorted: of equal logits the first.
    starts, ends = (np.argsort(-scores[:, side], kind="stable")[: rules.n_best] for side in (0, 1))
    starts, ends = (each[(each >= first) & (each < len(scores) - 1)] for each in (starts, ends))
    starts = starts[flags[starts - first]]
    lengths = ends - starts[:, None] + 1
    start, end = np.nonzero((lengths >= 1) & (lengths <= rules.max_answer_length))
    return np.stack((starts[start], ends[end]), axis=1)


def _null(scores: list[Floats]) -> _Span:
    pairs = [(float(each[0, 0]), float(each[0, 1])) for each in scores]
    return "", None, None, *min(pairs, key=sum)


def _ranked(passage: Passage, spans: Ints, logits: NDArray[np.float64], null: _Span | None, most: int) -> Best:
    """spans: int64[N, 2], pieces of the context. logits: float64[N, 2]."""
    kept: dict[str, _Span] = {}
    none = -np.inf if null is None else null[3] + null[4]
    order = np.argsort(-logits.sum(1), kind="stable")
    begins, ends = (each[order].tolist() for each in passage.characters(*spans.T))
    for begin, end, (start_logit, end_logit) in zip(begins, ends, logits[order].tolist(), strict=True):
        if null is not None and none > start_logit + end_logit:
            kept.setdefault("", null)
        if len(kept) >= most:
            break
        text = passage.text[begin:end]
        kept.setdefault(text, (text, begin, end, start_logit, end_logit))
    if null is not None:
        kept.setdefault("", null)
    best = Best(_with_probabilities(list(kept.values()) or [("", None, None, 0.0, 0.0)]))
    if null is None:
        return best
    start_logit, end_logit = (best.span.start_logit, best.span.end_logit) if best.span is not None else (0.0, 0.0)
    return replace(best, null_score=none - start_logit - end_logit)


def _with_probabilities(spans: list[_Span]) -> tuple[Guess, ...]:
    """Softmax over the scores of those that are kept."""
    shares = probabilities(np.array([[each[3] + each[4] for each in spans]]))[0].tolist()
    return tuple(Guess(*each, share) for each, share in zip(spans, shares, strict=True))
