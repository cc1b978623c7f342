"""Output for the user: one line per fact on standard error, a progress bar on a terminal and plain lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from tqdm import tqdm

logger = logging.getLogger("bertsmith")
_said: set[str] = set()
_WARNING = "warning: "
_level = logging.INFO
_DETAILS_EVERY_SECONDS = 120.0
_is_first_rank = True
_is_alone = False


class _AboveBars(logging.Handler):
    """Writes each record above any progress bar that is on the screen. Where that fails the work continues: whoever
    reads our output may have gone, as `tee` has at a Ctrl-C. The next record that a disk takes says how many
    were refused, of which some may still come from the stream's buffer."""

    _lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        bars = sys.modules.get("tqdm")
        write = bars.tqdm.write if bars is not None else print
        lost = f"{_WARNING}up to {counted(self._lost, 'line')} of the log are missing here\n" if self._lost else ""
        try:
            write(lost + self.format(record), file=sys.stderr)
        except OSError:
            self._lost += 1
        else:
            self._lost = 0


def configure(quiet: bool = False, debug: bool = False) -> None:
    """Sends our log to standard error. quiet: warnings only. debug: everything. The command line calls it once."""
    logger.handlers = [_AboveBars()]
    logger.handlers[0].setFormatter(logging.Formatter("%(message)s"))
    logger.propagate = False
    logger.setLevel(logging.WARNING if quiet else logging.DEBUG if debug else logging.INFO)


def only_warnings(begin: str) -> None:
    """Shows warnings alone, each with this before it: the log of a rank that is not the first."""
    global _is_first_rank
    _is_first_rank = False
    logger.setLevel(logging.WARNING)
    for handler in logger.handlers:
        handler.setFormatter(logging.Formatter(f"{begin}%(message)s"))


@contextmanager
def as_only_rank() -> Iterator[None]:
    """Inside the block this rank does something else than the others, so it shows the warnings of all ranks itself."""
    global _is_alone
    before, _is_alone = _is_alone, True
    try:
        yield
    finally:
        _is_alone = before


@contextmanager
def as_details() -> Iterator[None]:
    """Shows messages from inside the block under --debug only; warnings, bars and sparse lines of progress stay."""
    global _level
    before, _level = _level, logging.DEBUG
    try:
        yield
    finally:
        _level = before


@contextmanager
def each_warning_once() -> Iterator[None]:
    """Shows a warning that was given before in the block under --debug only."""
    given: set[str] = set()

    def keep(record: logging.LogRecord) -> bool:
        is_new = record.levelno != logging.WARNING or record.getMessage() not in given
        given.add(record.getMessage())
        return is_new or logger.isEnabledFor(logging.DEBUG)

    logger.addFilter(keep)
    try:
        yield
    finally:
        logger.removeFilter(keep)


@contextmanager
def warnings_taken(take: Callable[[str], None]) -> Iterator[None]:
    """Gives every warning from inside the block to `take` too, whatever thread it comes from. `take` must neither warn
    nor raise."""

    def look(record: logging.LogRecord) -> bool:
        if record.levelno == logging.WARNING:
            take(record.getMessage().removeprefix(_WARNING))
        return True

    # A filter, because a handler would take the place of the one by which Python shows warnings where it has no other.
    logger.addFilter(look)
    try:
        yield
    finally:
        logger.removeFilter(look)


def say(message: str) -> None:
    """Logs a fact that the user should see."""
    logger.log(_level, _writable(message))


def warn(message: str, of_all_ranks: bool = False) -> None:
    """Logs something that may be wrong; shown even with --quiet. of_all_ranks: the first one shows it."""
    if _is_first_rank or _is_alone or not of_all_ranks:
        logger.warning(f"{_WARNING}{_writable(message)}")


def _writable(message: str) -> str:
    """With halves of a surrogate pair, which a file's name or a user's JSON may hold and UTF-8 cannot, as escapes."""
    return message.encode(errors="backslashreplace").decode()


def log_choice(what: str, choice: str, reason: str) -> None:
    """Logs an automatic choice and its reason, once per process; among details it may be logged again later."""
    message = f"{what}: {choice} ({reason})"
    if message not in _said:
        if _level == logging.INFO:
            _said.add(message)
        say(message)


class Progress:
    """Reports progress towards `total` (None: unknown): a bar with rate and time left on a terminal, else lines."""

    def __init__(self, what: str, total: int | None, unit: str = "it", every_seconds: float = 15.0) -> None:
        self._what, self._total, self._unit = what, total, unit
        self._every = every_seconds if _level == logging.INFO else max(every_seconds, _DETAILS_EVERY_SECONDS)
        self._start = self._told = time.monotonic()
        self._shown = logger.isEnabledFor(logging.INFO)
        self.done = self._skipped = 0
        self._bar = _bar(what, total, unit) if sys.stderr.isatty() and self._shown else None

    def skip(self, count: int) -> None:
        """Counts units that an earlier run did: they do not enter the rate."""
        self._skipped = count
        if self._bar is not None:
            self._bar.update(count)
            self._bar.unpause()

    def advance(self, count: int, note: str = "") -> None:
        """Counts `count` units as done; `note` is shown after the bar or the line."""
        self.done += count
        if self._bar is not None:
            if note:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(count)
            return
        now = time.monotonic()
        if self._shown and now - self._told >= self._every:
            self._told = now
            logger.info(self._line(now, note))

    def _line(self, now: float, note: str) -> str:
        rate = self.done / max(now - self._start, 1e-9)
        done = self._skipped + self.done
        of = f"/{self._total:,}" if self._total is not None else ""
        left = f", {duration((self._total - done) / rate)} left" if self._total and rate > 0 else ""
        suffix = f"; {note}" if note else ""
        return f"  {self._what}: {done:,}{of} {self._unit}, {rate:,.1f} {self._unit}/s{left}{suffix}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()


def _bar(what: str, total: int | None, unit: str) -> tqdm[Any]:
    # Imported when first needed: it would be a sixth of the import time of a worker of `prepare`.
    from tqdm import tqdm

    return tqdm(total=total, desc=what, unit=unit, unit_scale=True, leave=False)


def duration(seconds: float) -> str:
    """Seconds in a readable form: 0.8 s, 42 s, 3 min 5 s, 2 h 14 min."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"


def size(count_bytes: float) -> str:
    """Bytes in a readable form, of either sign, in powers of 1000: 812 B, 4.1 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count_bytes) < 1000:
            return f"{count_bytes:.0f} {unit}" if unit == "B" else f"{count_bytes:.1f} {unit}"
        count_bytes /= 1000
    return f"{count_bytes:.1f} TB"


def first_of(names: Iterable[str], most: int = 8) -> str:
    """The first of these, and how many there are beside them: "a, b, c and 12 more"."""
    every = list(names)
    more = f" and {len(every) - most:,} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def counted(count: int, what: str) -> str:
    """Such as "1 row", "1,200 rows", "2 classes"."""
    plural = "es" if what.endswith("s") else "s"
    return f"{count:,} {what}{'' if count == 1 else plural}"
