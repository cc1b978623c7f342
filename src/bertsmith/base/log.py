"""What the user reads: one line per fact on standard error, a progress bar on a terminal and plain lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from tqdm import tqdm

logger = logging.getLogger("bertsmith")
_said: set[str] = set()


class _AboveBars(logging.Handler):
    """Writes each record above any progress bar that is on the screen."""

    def emit(self, record: logging.LogRecord) -> None:
        bars = sys.modules.get("tqdm")
        write = bars.tqdm.write if bars is not None else print
        write(self.format(record), file=sys.stderr)


def configure(quiet: bool = False, debug: bool = False) -> None:
    """Sends our log to standard error. quiet: warnings only. debug: everything. Called by the command line once."""
    logger.handlers = [_AboveBars()]
    logger.handlers[0].setFormatter(logging.Formatter("%(message)s"))
    logger.propagate = False
    logger.setLevel(logging.WARNING if quiet else logging.DEBUG if debug else logging.INFO)


def say(message: str) -> None:
    """A fact the user should see."""
    logger.info(message)


def warn(message: str) -> None:
    """Something that may be wrong. Shown even under --quiet."""
    logger.warning(f"warning: {message}")


def log_choice(what: str, choice: str, reason: str) -> None:
    """Says an automatic choice and its reason, once a process."""
    message = f"{what}: {choice} ({reason})"
    if message not in _said:
        _said.add(message)
        say(message)


class Progress:
    """Counts work towards `total` (None: unknown): a bar with rate and time left on a terminal, else some lines."""

    def __init__(self, what: str, total: int | None, unit: str = "it", every_seconds: float = 15.0) -> None:
        self._what, self._total, self._unit, self._every = what, total, unit, every_seconds
        self._start = self._told = time.monotonic()
        self._shown = logger.isEnabledFor(logging.INFO)
        self.done = self._skipped = 0
        self._bar = _bar(what, total, unit) if sys.stderr.isatty() and self._shown else None

    def skip(self, count: int) -> None:
        """Counts units that were done before, in an earlier run: they do not enter the rate."""
        self._skipped = count
        if self._bar is not None:
            self._bar.update(count)
            self._bar.unpause()

    def advance(self, count: int, note: str = "") -> None:
        """Counts `count` units as done; `note` is shown behind the bar or the line."""
        self.done += count
        if self._bar is not None:
            if note:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(count)
            return
        now = time.monotonic()
        if self._shown and now - self._told >= self._every:
            self._told = now
            say(self._line(now, note))

    def _line(self, now: float, note: str) -> str:
        rate = self.done / max(now - self._start, 1e-9)
        done = self._skipped + self.done
        of = f"/{self._total:,}" if self._total is not None else ""
        left = f", {duration((self._total - done) / rate)} left" if self._total and rate > 0 else ""
        behind = f"; {note}" if note else ""
        return f"  {self._what}: {done:,}{of} {self._unit}, {rate:,.1f} {self._unit}/s{left}{behind}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.close()


def _bar(what: str, total: int | None, unit: str) -> tqdm[Any]:
    # Imported when first drawn: it is a sixth of what a worker of `prepare` would import.
    from tqdm import tqdm

    return tqdm(total=total, desc=what, unit=unit, unit_scale=True, leave=False)


def duration(seconds: float) -> str:
    """Seconds as a person says them: 0.8 s, 42 s, 3 min 5 s, 2 h 14 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def size(count_bytes: float) -> str:
    """Bytes as a person says them, in powers of 1000: 812 B, 4.1 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count_bytes < 1000:
            return f"{count_bytes:.0f} {unit}" if unit == "B" else f"{count_bytes:.1f} {unit}"
        count_bytes /= 1000
    return f"{count_bytes:.1f} TB"
