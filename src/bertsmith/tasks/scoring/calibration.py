"""Whether probabilities can be believed: calibration error, and the temperature that removes most of it.

Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", 2017. Legend: N rows, C classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.tasks.scoring.resampling import Floats, Ints, folds_of

AnyFloats = NDArray[np.floating[Any]]

BINS = 15
LOWEST, HIGHEST = 0.05, 20.0
"""The temperatures that are considered. Where every row is right the best one would be 0."""
# A probability of 1 of an answer that is wrong would be an infinite loss.
_LEAST_LIKELY = 1e-12


@dataclass(frozen=True)
class Bin:
    """Rows whose confidence is above `low` (or 0) and at most `high`; the means are None where there are none."""

    low: float
    high: float
    rows: int
    confidence: float | None
    accuracy: float | None


@dataclass(frozen=True)
class Reliability:
    """nll: mean negative log-likelihood of the true class, or of whether an answer is right, in nats. ece: expected
    calibration error, the mean over rows of the distance between the confidence of a row's bin and its accuracy."""

    nll: float
    ece: float
    bins: tuple[Bin, ...]


@dataclass(frozen=True)
class Calibration:
    """A temperature, and what it changes.

    temperature: what logits are divided by; 1 where `kept` is False. fitted: the one with the lowest NLL of the rows.
    after: with temperatures fitted on other rows, where `cross_fitted`; else on the rows that it was fitted on. kept:
    whether it is worth using: `after` has a lower NLL than `before`, and the range that is searched does not bound it.
    """

    temperature: float
    fitted: float
    kept: bool
    before: Reliability
    after: Reliability
    cross_fitted: bool
    remark: str


def log_probabilities(logits: AnyFloats, temperature: float | Floats = 1.0) -> Floats:
    """The logarithm of the softmax of logits / temperature, in float64: [N, C]. temperature: one, or one a row."""
    scores = np.asarray(logits, dtype=np.float64) / np.reshape(temperature, (-1, 1))
    scores = scores - scores.max(1, keepdims=True)
    return np.asarray(scores - np.log(np.exp(scores).sum(1, keepdims=True)), dtype=np.float64)


def probabilities(logits: AnyFloats, temperature: float | Floats = 1.0) -> Floats:
    """The softmax of logits / temperature, in float64: [N, C]."""
    return np.asarray(np.exp(log_probabilities(logits, temperature)), dtype=np.float64)


def as_two_classes(logits: AnyFloats) -> Floats:
    """Logits of single decisions, of any shape, as those of two classes (no, yes): float64[decisions, 2]."""
    yes = np.asarray(logits, dtype=np.float64).reshape(-1)
    return np.stack([np.zeros_like(yes), yes], axis=1)


def yes_probabilities(logits: AnyFloats) -> Floats:
    """The logistic function of logits of single decisions, in float64, of their shape."""
    return probabilities(as_two_classes(logits))[:, 1].reshape(np.shape(logits))


def reliability(logits: AnyFloats, true: Ints, temperature: float | Floats = 1.0, bins: int = BINS) -> Reliability:
    """NLL and calibration error of the likeliest class, with `bins` bins of equal width from 0 to 1."""
    logs = log_probabilities(logits, temperature)
    return _binned(np.exp(logs.max(1)), logs.argmax(1) == true, _nll(logs, true), bins)


def reliability_of_answers(confidence: Floats, right: NDArray[np.bool_]) -> Reliability:
    """The same of answers that are right or wrong, by the probability of each: [N]."""
    p = np.clip(np.where(right, confidence, 1 - confidence), _LEAST_LIKELY, 1.0)
    return _binned(confidence, right, _nll_of(np.log(p)), BINS)


def _binned(confidence: Floats, right: NDArray[np.bool_], nll: float, bins: int) -> Reliability:
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    counts, confident, correct = (np.bincount(place, each, minlength=bins) for each in (None, confidence, right))
    found = [
        Bin(
            low=number / bins,
            high=(number + 1) / bins,
            rows=int(count),
            confidence=float(confident[number] / count) if count else None,
            accuracy=float(correct[number] / count) if count else None,
        )
        for number, count in enumerate(counts)
    ]
    gaps = np.abs(confident - correct).sum() / len(right)
    return Reliability(nll, float(gaps), tuple(found))


def _nll(logs: Floats, true: Ints) -> float:
    return _nll_of(logs[np.arange(len(true)), true])


def _nll_of(logs: Floats) -> float:
    """Of the logarithms of probabilities, of which none is above 0; a mean of 0 is not negated, which would be -0."""
    return abs(float(logs.mean()))


def fitted_temperature(logits: AnyFloats, true: Ints) -> float:
    """The temperature between `LOWEST` and `HIGHEST` with the lowest NLL.

    The NLL is convex in 1 / temperature, so Newton's method inside a bracket that only shrinks finds it. It is never
    above the NLL at temperature 1, which is kept where nothing is better.
    """
    scores = np.asarray(logits, dtype=np.float64)
    rows = np.arange(len(true))
    above = scores - scores[rows, true][:, None]  # over the true class

    def derivatives(sharpness: float) -> tuple[float, float]:
        p = probabilities(above * sharpness)
        mean = (p * above).sum(1)
        spread = (p * (above - mean[:, None]) ** 2).sum(1)
        return float(mean.sum()), float(spread.sum())

    low, high, here = 1 / HIGHEST, 1 / LOWEST, 1.0
    if derivatives(low)[0] >= 0:
        here = low
    elif derivatives(high)[0] <= 0:
        here = high
    else:
        for _ in range(200):
            first, second = derivatives(here)
            low, high = (here, high) if first < 0 else (low, here)
            there = here - first / second if second > 0 else low
            there = there if low < there < high else (low + high) / 2
            if abs(there - here) <= 1e-12 * here:
                break
            here = there
    better = _nll(log_probabilities(scores, 1 / here), true) < _nll(log_probabilities(scores), true)
    return 1 / here if better else 1.0


def calibrate(logits: AnyFloats, true: Ints, groups: Sequence[Any] | NDArray[Any] | None = None) -> Calibration:
    """The temperature of these rows, measured by cross-fitting over 5 folds.

    The rows of a fold are measured with the temperature of the other folds. Rows of a group stay together. It is kept
    where it lowers the NLL of rows that it was not fitted on, unless it lies at the end of the range: then the rows
    leave open how far it should go, as few rows do that are all right.
    """
    before, fitted = reliability(logits, true), fitted_temperature(logits, true)
    fold = folds_of(len(true), groups)
    count = int(fold.max()) + 1
    if count > 1:
        each = [fitted_temperature(logits[fold != number], true[fold != number]) for number in range(count)]
        after = reliability(logits, true, np.array(each)[fold])
    else:
        after = reliability(logits, true, fitted)
    at_end = not LOWEST * 1.001 < fitted < HIGHEST / 1.001
    kept = count > 1 and after.nll < before.nll and not at_end
    remark = _remark(kept, fitted, count, at_end)
    if kept and after.ece > before.ece:
        remark += "; it lowers the loss, not the calibration error"
    return Calibration(fitted if kept else 1.0, fitted, kept, before, after, count > 1, remark)


def calibrated_elsewhere(logits: AnyFloats, true: Ints, temperature: float) -> Calibration:
    """What a temperature changes that was not fitted to these rows."""
    before, after = reliability(logits, true), reliability(logits, true, temperature)
    remark = "the temperature was not fitted to these rows"
    return Calibration(temperature, temperature, temperature != 1, before, after, False, remark)


def _remark(kept: bool, fitted: float, count: int, at_end: bool) -> str:
    if count < 2:
        return "the temperature is not used: with rows of one group it could only be measured on rows it was fitted on"
    how = f"'after' is measured with temperatures that were fitted on the other {count - 1} of {count} folds"
    if at_end:
        return f"{how}; the temperature {fitted:.4g} is the end of the range that is searched, so it is not used"
    if not kept:
        return f"{how}; the temperature {fitted:.4g} does not lower the loss of such rows, so it is not used"
    return how
