"""Rows that cannot be used: they end the reading, or are left out and written to a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError

BadRow = tuple[BertsmithError, Any]
"""What is wrong with a row, and the row: its bytes or its cells."""
Report = Callable[[BertsmithError, Any], None]
"""Is given a bad row."""
_SHOWN = 5


def raise_at_once(error: BertsmithError, row: Any) -> None:
    """The Report of who stops at the first bad row."""
    raise error


def pass_over(error: BertsmithError, row: Any) -> None:
    """The Report of who looks at good rows only."""


@dataclass
class SkippedRows:
    """Rows that were left out. most: the largest share of the rows of a file that may be."""

    most: float
    rows: list[BadRow] = field(default_factory=list)

    def may_skip(self, bad: int, good: int) -> bool:
        """Whether so many rows of a file may be left out; never all of them."""
        return good > 0 and bad <= self.most * (bad + good)

    def write(self, path: Path) -> None:
        """Writes a line of JSON for each: {"where", "why", "row"}. Raises BertsmithError where it cannot."""
        lines = (
            json.dumps({"where": error.where, "why": error.what, "row": _plain(row)}, ensure_ascii=False, default=str)
            for error, row in self.rows
        )
        # Half of a surrogate pair is written as JSON's escape of it.
        raw = "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")
        files.write_whole(path, lambda file: file.write(raw))


def refusal(bad: Sequence[BadRow], good: int, name: str | Path, fix: str) -> BertsmithError:
    """An error that counts bad rows and names the first of them."""
    listed = "".join(f"\n    {error.where}: {error.what}" for error, _ in bad[:_SHOWN])
    more = f"\n    and {len(bad) - _SHOWN:,} more" if len(bad) > _SHOWN else ""
    return BertsmithError(f"{len(bad):,} of {len(bad) + good:,} rows cannot be used:{listed}{more}", name, fix)


def _plain(row: Any) -> Any:
    return row.decode(errors="backslashreplace").rstrip("\r\n") if isinstance(row, bytes) else row
