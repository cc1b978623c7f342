"""A part: a stretch of the rows of a file that is answered by itself, and what became of it."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Self, TypeGuard, TypeVar

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted, warn
from bertsmith.tasks.examples import empty_in_words
from bertsmith.tasks.reading.bad_rows import SHOWN, BadRow, Report, in_words
from bertsmith.tasks.reading.records import Columns, NoColumn, Row, RowReader, has_lone_surrogate, no_characters
from bertsmith.tasks.sequences import Sequences
from bertsmith.tasks.task import NotFiniteError
from bertsmith.tokens.tokenizer import Tokenizer

Named = tuple[str, Row | str]
"""A row with its name for messages, "file:line"."""
OnError = Literal["stop", "skip"]
T = TypeVar("T")
_SKIP = "or use --on-error skip, which leaves such rows out and lists them"


class TakenColumn(BertsmithError):
    """A row has a column of the name that its answer gets, as most often all rows of its file do."""


@dataclass(frozen=True)
class Part:
    """number: from 0. first: how many rows stand before it. rows: in the order of the file; in the place of one that
    could not be read is what is wrong with it. names: the columns of the file's first row."""

    number: int
    first: int
    rows: list[Named | BadRow]
    names: tuple[str, ...] = ()

    def places(self) -> dict[str, int]:
        """The number of each row in the file, from 0, by its name."""
        names = (name.where if isinstance(name, BertsmithError) else name for name, _ in self.rows)
        return {name: place for place, name in enumerate(names, self.first)}


@dataclass
class Account:
    """What became of rows. rows: answered. truncated_rows, truncated_tokens: how many of them the model read in part,
    and how many of their tokens it did not. skipped: left out because they cannot be used. first_skipped: the first of
    those, in words. empty_texts: kinds of `Sequences.empty_rows`, each with how many rows that were answered have such
    a text, and the name of the first. header: the line that a table begins with."""

    rows: int = 0
    truncated_rows: int = 0
    truncated_tokens: int = 0
    skipped: int = 0
    first_skipped: list[str] = field(default_factory=list)
    empty_texts: dict[str, list[Any]] = field(default_factory=dict)
    header: str = ""

    def read(self, where: str, lost_tokens: int, empty: Mapping[str, str]) -> None:
        """Counts a row that was answered, and what of it the model did not read. empty: of `empty_rows`."""
        self.rows += 1
        if where in empty:
            self.empty_texts.setdefault(empty[where], [0, where])[0] += 1
        self.truncated_rows += lost_tokens > 0
        self.truncated_tokens += lost_tokens

    def read_all(self, rows: list[Named], sequences: Sequences, tokenizer: Tokenizer) -> None:
        """Counts rows that were all answered."""
        empty = empty_rows(rows, sequences, tokenizer)
        for (where, _), tokens in zip(rows, sequences.row_lost_tokens.tolist(), strict=True):
            self.read(where, tokens, empty)

    def skip(self, error: BertsmithError) -> None:
        """Counts a row that was left out."""
        self.skipped += 1
        if len(self.first_skipped) < SHOWN:
            self.first_skipped.append(in_words(error))

    def shortfall(self, what: str) -> str:
        """What was not read, for the end of a line; "" where all was. what: the word for one that was truncated."""
        cut = f"; {counted(self.truncated_rows, what)} truncated, {counted(self.truncated_tokens, 'token')} not read"
        left = f"; {counted(self.skipped, 'row')} left out"
        return f"{cut if self.truncated_rows else ''}{left if self.skipped else ''}"

    def warn_of_empty(self) -> None:
        """Says how many answers are of rows with a text of which the model read no token that it knows."""
        for what, (count, first) in self.empty_texts.items():
            warn(empty_in_words(what, count, self.rows, first))

    def add(self, other: Account) -> None:
        """Adds that of a later part. Raises BertsmithError where its table has another header."""
        if self.header and other.header and self.header != other.header:
            what = "later rows have other columns than the first ones"
            raise BertsmithError(what, other.header.strip(), "write to a .jsonl file")
        for name in ("rows", "truncated_rows", "truncated_tokens", "skipped"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.first_skipped += other.first_skipped[: SHOWN - len(self.first_skipped)]
        for what, (count, first) in other.empty_texts.items():
            self.empty_texts.setdefault(what, [0, first])[0] += count
        self.header = self.header or other.header

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Any) -> Self:
        """What `to_json` made. ValueError for anything else."""
        kinds = {name: type(value) for name, value in vars(cls()).items()}
        if not isinstance(values, dict) or {name: type(value) for name, value in values.items()} != kinds:
            raise ValueError(f"it does not hold {', '.join(kinds)}")
        return cls(**values)


class PartWork(ABC):
    """A loaded model, and how its answers are written. columns, reader: how rows are read for it. facts: all that
    decides what is written, such as its precision, as JSON."""

    columns: Columns
    reader: type[RowReader] = RowReader
    facts: Mapping[str, Any]

    @abstractmethod
    def usable(self, where: str, row: Row | str) -> None:
        """Raises BertsmithError for a row that cannot be answered, as far as that shows without the model."""

    @abstractmethod
    def answered(self, rows: list[Named], part: Part, account: Account, report: Report) -> bytes:
        """What is written for the usable rows of a part, which are counted. report: is given a row whose answer cannot
        be written. Raises BertsmithError that names a row which cannot be answered."""


@dataclass(frozen=True)
class Answered:
    """payload: what is written for a part. bad: the rows that were left out, in order."""

    payload: bytes
    bad: list[BadRow]
    account: Account


def answer(work: PartWork, part: Part, on_error: OnError) -> Answered:
    """Answers the rows of a part. Raises BertsmithError at the first bad row, or with "skip" leaves bad rows out."""
    if on_error == "stop":
        # What is wrong with a row before the one that could not be read comes first.
        done = _answer(work, part, list(filter(is_row, part.rows)), stop_at)
        for bad in filter(is_bad, part.rows):
            stop_at(*bad)
        return done
    found = list(filter(is_bad, part.rows))
    done = _answer(work, part, list(filter(is_row, part.rows)), lambda *bad: found.append(bad))
    places = part.places()
    found.sort(key=lambda bad: places.get(bad[0].where, 0))
    for error, _ in found:
        done.account.skip(error)
    return Answered(done.payload, found, done.account)


def stop_at(error: BertsmithError, row: Any) -> None:
    """The Report of "stop". A column that is missing or taken is one of the file: without its rows nothing would be
    left. An error that it raised comes here again where that was among the answers."""
    if isinstance(error, NoColumn | TakenColumn) or error.fix.endswith(_SKIP):
        raise error
    raise BertsmithError(error.what, error.where, "; ".join(filter(None, (error.fix, _SKIP)))) from error


def _answer(work: PartWork, part: Part, rows: list[Named], report: Report) -> Answered:
    good = []
    for where, row in rows:
        try:
            work.usable(where, row)
        except BertsmithError as error:
            report(error, row)
        else:
            good.append((where, row))
    while True:
        account = Account()
        try:
            payload = work.answered(good, part, account, report) if good else b""
            return Answered(payload, [], account)
        except BertsmithError as error:
            names = set(error.rows if isinstance(error, NotFiniteError) else (error.where,))
            bad = [row for row in good if row[0] in names]
            if not bad:
                raise
            for where, row in bad:
                report(error if isinstance(error, TakenColumn) else BertsmithError(error.what, where, error.fix), row)
            good = [row for row in good if row[0] not in names]


def is_bad(row: Named | BadRow) -> TypeGuard[BadRow]:
    """Whether this is what is wrong with a row, not a row."""
    return isinstance(row[0], BertsmithError)


def is_row(row: Named | BadRow) -> TypeGuard[Named]:
    """The reverse of `is_bad`."""
    return not is_bad(row)


def empty_rows(rows: list[Named], sequences: Sequences, tokenizer: Tokenizer) -> dict[str, str]:
    """The kind of `Sequences.empty_rows` of each row that is of one, by its name."""
    found = sequences.empty_rows(tokenizer.special) if rows else {}
    return {rows[row][0]: what for what, numbers in found.items() for row in numbers}


def lines(
    rows: list[Named], answers: list[T], line: Callable[[str, Row, T], str], report: Report
) -> Iterator[tuple[str, T, str]]:
    """The answers that can be written, with the names of their rows and the lines that are written for them; the others
    are reported."""
    for (where, row), each in zip(rows, answers, strict=True):
        assert not isinstance(row, str)
        try:
            written = line(where, row, each)
            check_line(where, written, row)
        except BertsmithError as error:
            report(error, row)
        else:
            yield where, each, written


def json_text(where: str, value: Any) -> str:
    """A value of the row `where` as JSON. Raises BertsmithError for a number in it that is NaN or infinite."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError as error:
        parts = value.items() if isinstance(value, Mapping) else ()
        holder = next((f"'{name}'" for name, each in parts if not is_finite(each)), "a column")
        what = f"{holder} of this row holds a number that JSON does not have (NaN or infinity)"
        raise BertsmithError(what, where, "write null in its place, or remove this row") from error


def is_finite(value: Any) -> bool:
    """Whether no number in a value of JSON is NaN or infinite."""
    if isinstance(value, Mapping | list):
        return all(map(is_finite, value.values() if isinstance(value, Mapping) else value))
    return not isinstance(value, float) or math.isfinite(value)


def check_line(where: str, line: str, row: Row) -> None:
    """Raises BertsmithError for the line of a row that UTF-8 cannot hold, as of a column of bytes."""
    if has_lone_surrogate(line):
        cells = ((name, json.dumps([name, cell], ensure_ascii=False, default=str)) for name, cell in row.items())
        holder = next((f"column '{name}'" for name, cell in cells if has_lone_surrogate(cell)), "a column")
        what = f"{holder} of this row holds {no_characters(line)}, which cannot be written"
        raise BertsmithError(what, where, "correct or remove this row, or leave that column out of the file")
