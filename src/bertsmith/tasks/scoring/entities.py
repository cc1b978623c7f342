"""Precision, recall and F1 of entities as conlleval counts them: one is right where its span and its type are.

conlleval is the scorer of the CoNLL shared tasks since 2000 (Tjong Kim Sang and Buchholz).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from bertsmith.base.tables import aligned


class Span(NamedTuple):
    """From `start` up to and without `end`, in words or in characters as the caller says; label: its type."""

    start: int
    end: int
    label: str


@dataclass(frozen=True)
class Agreement:
    """Of the entities of a type, or of all: how many were predicted, how many are true, and how many are both."""

    right: int
    predicted: int
    true: int

    @property
    def precision(self) -> float:
        """The share of the predicted ones that is right; 0 where nothing is predicted."""
        return self.right / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """The share of the true ones that was predicted; 0 where there are none."""
        return self.right / self.true if self.true else 0.0

    @property
    def f1(self) -> float:
        """The harmonic mean of both; 0 where nothing is predicted or true."""
        both = self.predicted + self.true
        return 2 * self.right / both if both else 0.0


def agreement_by_type(predicted: Iterable[Iterable[Span]], true: Iterable[Iterable[Span]]) -> dict[str, Agreement]:
    """How far the predicted entities of each text are the true ones, for every type that occurs, in order of names."""
    right, found, wanted = Counter[str](), Counter[str](), Counter[str]()
    for ours, theirs in zip(predicted, true, strict=True):
        ours, theirs = set(ours), set(theirs)
        right.update(span.label for span in ours & theirs)
        found.update(span.label for span in ours)
        wanted.update(span.label for span in theirs)
    return {name: Agreement(right[name], found[name], wanted[name]) for name in sorted(found | wanted)}


def overall(by_type: Mapping[str, Agreement]) -> Agreement:
    """All types together: what conlleval puts in its first lines (micro-averaged)."""
    parts = by_type.values()
    return Agreement(*(sum(getattr(part, name) for part in parts) for name in ("right", "predicted", "true")))


def entity_metrics(by_type: Mapping[str, Agreement]) -> dict[str, float]:
    """F1, precision and recall of all entities, and the mean of the F1 of every type that is predicted or true."""
    total = overall(by_type)
    mean = sum(each.f1 for each in by_type.values()) / len(by_type) if by_type else 0.0
    return {"entity_f1": total.f1, "precision": total.precision, "recall": total.recall, "macro_f1": mean}


def table(by_type: Mapping[str, Agreement]) -> list[str]:
    """Lines for a person: a type each, then all of them."""
    rows = [["type", "precision", "recall", "f1", "true", "predicted"]]
    for name, each in (*by_type.items(), ("all", overall(by_type))):
        shares = [f"{share:.4f}" for share in (each.precision, each.recall, each.f1)]
        rows.append([name, *shares, f"{each.true:,}", f"{each.predicted:,}"])
    return aligned(rows)
