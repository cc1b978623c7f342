"""The report of a bench: the command, the machine, tables for readers, and rows for programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bertsmith.base.tables import aligned


@dataclass(frozen=True)
class Table:
    """A table: the first column is left-aligned, the others right-aligned."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def as_text(self) -> str:
        """For a terminal."""
        lines = aligned([self.head, *self.rows])
        return "\n".join([self.title, *(f"  {line}" for line in lines)])

    def as_markdown(self) -> str:
        """For a page."""
        lines = [self.head, ["---", *["---:"] * (len(self.head) - 1)], *self.rows]
        return "\n".join([f"**{self.title}**", "", *("| " + " | ".join(line) + " |" for line in lines)])


@dataclass(frozen=True)
class Report:
    """about: what was measured and how, a sentence each. rows: every case, as JSON can hold it. machine: by name.
    command: to be typed again."""

    about: list[str]
    rows: list[dict[str, Any]]
    tables: list[Table]
    machine: dict[str, str] = field(default_factory=dict)
    command: str = ""

    def as_text(self) -> str:
        """For a terminal."""
        head = [f"command: {self.command}", *(f"{name}: {what}" for name, what in self.machine.items())]
        return "\n\n".join(["\n".join([*head, *self.about]), *(table.as_text() for table in self.tables)])

    def as_markdown(self) -> str:
        """For a page."""
        machine = [f"- {name}: {what}" for name, what in self.machine.items()]
        head = "\n".join([f"`{self.command}`", "", *machine, *(f"- {each}" for each in self.about)])
        return "\n\n".join([head, *(table.as_markdown() for table in self.tables)])

    def as_json(self) -> dict[str, Any]:
        """For a program: the rows and what they were measured on."""
        return {name: getattr(self, name) for name in ("command", "machine", "about", "rows")}
