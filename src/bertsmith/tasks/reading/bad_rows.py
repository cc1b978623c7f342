"""Rows that cannot be used: each ends the reading, or all are collected and written to a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import warn

Report = Callable[[BertsmithError, Any], None]
"""Is given what is wrong with a row, and the row: its bytes or its cells."""
_SHOWN = 5


def raise_at_once(error: BertsmithError, row: Any) -> None:
    """The Report of who stops at the first bad row."""
    raise error


@dataclass
class BadRows:
    """A Report that keeps what it is given. most: the largest share of bad rows that is let pass."""

    most: float
    found: list[tuple[BertsmithError, Any]] = field(default_factory=list)

    def __call__(self, error: BertsmithError, row: Any) -> None:
        self.found.append((error, row))

    def check(self, good: int, name: str | Path) -> None:
        """Raises BertsmithError where more than the share `most` of the rows of a file is bad, or all of them are."""
        bad, rows = len(self.found), len(self.found) + good
        if bad and (not good or bad > self.most * rows):
            raise refusal(
                self.found, rows, name, f"correct them; --bad-share lets more than {self.most:.0%} pass, but not all"
            )


def refusal(bad: list[tuple[BertsmithError, Any]], rows: int, name: str | Path, fix: str) -> BertsmithError:
    """An error that counts bad rows, and names the first of them."""
    listed = "".join(f"\n    {error.where}: {error.what}" for error, _ in bad[:_SHOWN])
    more = f"\n    and {len(bad) - _SHOWN:,} more" if len(bad) > _SHOWN else ""
    return BertsmithError(f"{len(bad):,} of {rows:,} rows cannot be used:{listed}{more}", name, fix)


def write_bad_rows(path: Path, bad: list[tuple[BertsmithError, Any]]) -> None:
    """Writes a line of JSON for each: {"where", "why", "row"}; without any, an empty file. Raises BertsmithError."""
    lines = (
        json.dumps({"where": error.where, "why": error.what, "row": _plain(row)}, ensure_ascii=False, default=str)
        for error, row in bad
    )
    # Half of a surrogate pair is written as JSON's escape of it.
    raw = "".join(f"{line}\n" for line in lines).encode(errors="backslashreplace")
    files.write_whole(path, lambda file: file.write(raw))
    if bad:
        warn(f"{len(bad):,} rows cannot be used and are left out; they are in {path}", of_all_ranks=True)


def _plain(row: Any) -> Any:
    return row.decode(errors="backslashreplace").rstrip("\r\n") if isinstance(row, bytes) else row
