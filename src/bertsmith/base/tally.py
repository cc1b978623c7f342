"""Counts of events, the bytes that they affected, and a few examples of where."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self

EXAMPLES = 3
_EXCERPT = 60


def excerpt(name: str, text: str) -> str:
    """A document as an example: its id and its first words, on one line."""
    return f"{name}: {' '.join(text[: 2 * _EXCERPT].split())[:_EXCERPT]}"


@dataclass
class Entry:
    """How often something happened, the bytes it affected, and where it happened first."""

    count: int = 0
    bytes: int = 0
    examples: list[str] = field(default_factory=list)


class Tally(dict[str, Entry]):
    """Entries by event. Tallies of parts, added in source order, give the same examples however the source was cut."""

    def note(self, what: str, count: int = 1, size_bytes: int = 0, example: str = "") -> None:
        """Counts `what`; keeps the first three examples."""
        entry = self.setdefault(what, Entry())
        entry.count += count
        entry.bytes += size_bytes
        if example and len(entry.examples) < EXAMPLES:
            entry.examples.append(example)

    def add(self, other: Tally) -> None:
        """Adds a later part's tally."""
        for what, theirs in other.items():
            entry = self.setdefault(what, Entry())
            entry.count += theirs.count
            entry.bytes += theirs.bytes
            entry.examples += theirs.examples[: EXAMPLES - len(entry.examples)]

    def lines(self) -> list[str]:
        """The entries as lines for the user: what, how often, and where first."""
        return [
            f"{what}: {entry.count:,}" + (f"; such as {entry.examples[0]}" if entry.examples else "")
            for what, entry in self.items()
        ]

    def to_json(self) -> dict[str, Any]:
        return {what: dataclasses.asdict(self[what]) for what in sorted(self)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return cls({what: Entry(**entry) for what, entry in values.items()})

    @property
    def count(self) -> int:
        return sum(entry.count for entry in self.values())

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.values())
