"""The bounds that the quickstart must pass before it says that something was learned, and their table."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, variance
from typing import Any, Literal

from bertsmith.base.tables import aligned

# The classifier must beat its control by this many standard errors of the difference of the two means.
STANDARD_ERRORS = 2.0
_HOLDS = {">=": operator.ge, ">": operator.gt, "<=": operator.le}


@dataclass(frozen=True)
class Figure:
    """One figure, the bound that it must pass, and where the bound comes from."""

    name: str
    value: float
    bound: float
    because: str
    sign: Literal[">=", ">", "<="] = ">="
    percent: bool = True

    @property
    def reached(self) -> bool:
        return bool(_HOLDS[self.sign](self.value, self.bound))

    def as_record(self) -> dict[str, Any]:
        return {**asdict(self), "reached": self.reached}


def pretraining_figures(evaluation: dict[str, float]) -> list[Figure]:
    """The figures of an evaluation on held-out documents beside what word frequencies alone reach.

    The stricter of two measures of frequency is taken: the entropy of the train split's pieces, and its loss on the
    very words that were masked.
    """
    frequency = min(evaluation["unigram_entropy"], evaluation["unigram_loss"])
    at = f" at {evaluation['sequence_length']:.0f} tokens"
    kinds = {
        "alphabetic pieces": ("masked_accuracy_alphabetic", "most_frequent_alphabetic_accuracy"),
        "all pieces": ("masked_accuracy", "most_frequent_accuracy"),
    }
    rights = [
        Figure(
            f"masked words right{at}, {kind}",
            evaluation[right],
            2 * evaluation[guessed],
            f"2 x always guessing the most frequent one, {evaluation[guessed]:.1%}",
        )
        for kind, (right, guessed) in kinds.items()
        if right in evaluation  # text of digits has no alphabetic pieces
    ]
    return [
        *rights,
        Figure(
            f"masked words{at}, loss in nats",
            evaluation["masked_loss"],
            frequency - 1,
            f"1 below frequency alone, {frequency:.3f}",
            sign="<=",
            percent=False,
        ),
    ]


def classifier_figures(trained: Sequence[float], control: Sequence[float], majority: float) -> list[Figure]:
    """The dev accuracy of the fine-tuned model over seeds, beside the same network from random weights."""
    mean, beside = fmean(trained), fmean(control)
    # A single seed has no spread.
    error = math.sqrt(sum(variance(each) / len(each) for each in (trained, control) if len(each) > 1))
    return [
        Figure(
            "classes right, against random weights",
            mean,
            beside + STANDARD_ERRORS * error,
            f"{STANDARD_ERRORS:g} standard errors ({error:.2%}) above random weights, {beside:.1%}",
            sign=">",
        ),
        Figure("classes right, against guessing", mean, majority, "always saying the most frequent class", sign=">"),
    ]


def table(figures: Sequence[Figure]) -> str:
    """The figures as lines of text."""
    rows = [("on text that was held out", "found", "needed", "", "the bound is")]
    for each in figures:
        form = "{:.1%}" if each.percent else "{:.3f}"
        verdict = "reached" if each.reached else "NOT REACHED"
        rows.append(
            (each.name, form.format(each.value), f"{each.sign:2} {form.format(each.bound)}", verdict, each.because)
        )
    lines = aligned(rows, "l")
    return "\n".join([lines[0], "-" * max(map(len, lines)), *lines[1:]])
