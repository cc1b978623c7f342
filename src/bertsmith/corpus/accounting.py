"""The accounting of a preparation: every document and byte read is either kept or dropped for a named reason."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

from bertsmith.base.tally import Tally

_TALLIES = ("dropped", "changed")


@dataclass
class Account:
    """What reading gave. Bytes are those of a document's text in UTF-8 as it was read, before cleaning.

    stream_bytes: of the sources, unpacked: texts and what stands around them. dropped: documents, by reason.
    changed: what was altered in documents that were kept, or left out around them. slow: pages that were given up
    after too long; on a faster machine they might not have been.
    """

    stream_bytes: int = 0
    documents: int = 0
    bytes: int = 0
    dropped: Tally = field(default_factory=Tally)
    changed: Tally = field(default_factory=Tally)
    slow: list[str] = field(default_factory=list)

    def read(self, size_bytes: int) -> None:
        """One document was read."""
        self.documents += 1
        self.bytes += size_bytes

    def drop(self, reason: str, size_bytes: int, example: str) -> None:
        """One document that was read is not kept."""
        self.dropped.note(reason, 1, size_bytes, example)

    def add(self, other: Account) -> None:
        """Adds a later part's account."""
        self.stream_bytes += other.stream_bytes
        self.documents += other.documents
        self.bytes += other.bytes
        self.dropped.add(other.dropped)
        self.changed.add(other.changed)
        self.slow += other.slow

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {name: getattr(self, name).to_json() for name in _TALLIES}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return cls(**values | {name: Tally.from_json(values[name]) for name in _TALLIES})
