"""Rows that cannot be used: they end the reading, or are left out and written to a file."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted, warn
from bertsmith.rows.compressed import codec_of, open_bytes

BadRow = tuple[BertsmithError, Any]
"""What is wrong with a row, and the row: its bytes or its cells."""
Report = Callable[[BertsmithError, Any], None]
"""Is given a bad row."""
SHOWN = 5
_OF_THE_ROW = re.compile("(column '[^']*')|[0-9]+|'[^']*'")
"""What a fault has of its row: numbers and cells. The group is what stays: which column it is of."""
NOT_UTF8 = "not UTF-8"
BAD_SHARE = 0.5
"""The largest share of the rows of a file that is left out unless another one is given."""
_BLOCK = 1 << 20
_LOST_BY_CHANCE = 100
"""To so many letters of an encoding of one byte each, fewer than one pair is by chance a letter in UTF-8."""
_BEGIN, _NEXT, _LONGEST_PLACE = b'{"where": ', b'", "why": "', 1 << 16
"""Of each line of a list, and the most bytes between both."""


def raise_at_once(error: BertsmithError, row: Any) -> None:
    """The Report of who stops at the first bad row."""
    raise error


def pass_over(error: BertsmithError, row: Any) -> None:
    """The Report of who looks at good rows only."""


def to_utf8(path: str | Path | None) -> str:
    """What to do about a row that is not UTF-8. path: of its file, which is read again; None for what came through a
    pipe. iconv makes two letters of every one of a file that is UTF-8 already."""
    if path is None:
        return "send rows in UTF-8"
    decoder, letters, lost = codecs.getincrementaldecoder("utf-8")("replace"), 0, 0
    with files.read_errors(path), open_bytes(path, codec_of(path)) as file:
        for block in iter(partial(file.read, _BLOCK), b""):
            found = decoder.decode(block)
            lost += found.count("\ufffd")
            letters += len(found) - len(found.encode("ascii", "ignore"))
    if (letters - lost) * _LOST_BY_CHANCE > lost:
        return "convert this one alone: others are UTF-8 already, and iconv of the whole file would spoil those"
    return "convert the file, as by: iconv -f WINDOWS-1252 -t UTF-8 FILE > new-FILE"


def check_list(path: Path, read: Iterable[str | Path] = ()) -> None:
    """Raises BertsmithError where a list of bad rows cannot be written, or would take the place of anything else. read:
    files that are read, of which it is none."""
    files.check_file(path)
    files.check_not_read(path, read)
    if not path.exists():
        return
    with files.read_errors(path), open(path, "rb") as file:
        first = file.read(len(_BEGIN) + _LONGEST_PLACE)
    if first and not (first.startswith(_BEGIN) and _NEXT in first):
        what = "this file is no list of bad rows, and would be written over by one"
        raise BertsmithError(what, path, "give the name of a file that is not there yet")


@dataclass
class SkippedRows:
    """Rows that were left out. most: the largest share of the rows of a file that may be, above 0 and up to 1."""

    most: float
    rows: list[BadRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not 0 < self.most <= 1:
            raise BertsmithError(f"--bad-share is {self.most:g}", "--bad-share", "use a share above 0, up to 1")

    def add(self, bad: Sequence[BadRow], good: int, name: str) -> None:
        """Counts bad rows among others. Raises BertsmithError, with the first of them, where they are too many."""
        if not good or len(bad) > self.most * (len(bad) + good):
            fix = f"correct them: at most {self.most:.0%} may be left out (--bad-share), and never all"
            raise refusal(bad, good, name, f"{bad[0][0].fix}; {fix}" if bad[0][0].fix else fix)
        self.rows += bad

    def write(self, path: Path) -> None:
        """Writes them as `line_of` has them, on the first rank, and says how many they are. Raises BertsmithError where
        it cannot."""
        from bertsmith.base import ranks  # loads torch, which neither a verb's help nor its flags need

        if ranks.is_first():
            files.write_whole(path, lambda file: file.writelines(map(line_of, self.rows)))
        if self.rows:
            warn(f"{counted(len(self.rows), 'bad row')} left out: {path}", of_all_ranks=True)


def line_of(bad: BadRow) -> bytes:
    """A line of JSON: {"where", "why", "row"}."""
    error, row = bad
    told = {"where": error.where, "why": error.what, "row": _plain(row)}
    try:
        line = json.dumps(told, ensure_ascii=False, allow_nan=False, default=str)
    except ValueError:  # a number that JSON does not have: then the row is a text, as one that is no JSON
        told["row"] = json.dumps(told["row"], ensure_ascii=False, default=str)
        line = json.dumps(told, ensure_ascii=False)
    # Half of a surrogate pair is written as JSON's escape of it.
    return f"{line}\n".encode(errors="backslashreplace")


def leave_out_or_refuse(
    bad: Sequence[BadRow], good: int, name: str, skipped: SkippedRows | None, fix: str = ""
) -> None:
    """Gives bad rows among good ones to `skipped`. Raises BertsmithError where that is None, or they are too many. fix:
    what to do about them; without it, what is to be done about the first one."""
    if not bad:
        return
    if skipped is None:
        how = "; finetune, distill and evaluate leave them out with --skip-bad-rows FILE; nothing was done"
        # Not suggested where most are bad: then it is more likely that they are read in a wrong way.
        are_few = len(bad) <= BAD_SHARE * (len(bad) + good)
        raise refusal(bad, good, name, (fix or bad[0][0].fix) + (how if are_few else ""))
    skipped.add(bad, good, name)


def refusal(bad: Sequence[BadRow], good: int, name: str | Path, fix: str) -> BertsmithError:
    """An error that counts bad rows and names the first of them. Where all rows have the same fault, it is one of the
    file or of how it is read, and `fix`, which is for a few rows, is left out."""
    first = [in_words(error) for error, _ in bad[:SHOWN]]
    if not good and len(bad) > 1 and len({_OF_THE_ROW.sub(r"\1", error.what) for error, _ in bad}) == 1:
        what = listed(f"{len(bad):,} of {len(bad):,} rows cannot be used, all for the same reason", first[:1])
        return BertsmithError(what, name, bad[0][0].fix or "correct the file, or the flags that say how it is read")
    what = listed(f"{len(bad):,} of {len(bad) + good:,} rows cannot be used", first, len(bad))
    return BertsmithError(what, name, fix)


def in_words(error: BertsmithError) -> str:
    """Which row it is, and what is wrong with it."""
    return f"{error.where}: {error.what}"


def listed(what: str, names: Sequence[str], count: int = 0) -> str:
    """A fact about rows, and the first of them a line each. count: of all, where `names` are only the first."""
    first, count = names[:SHOWN], max(count, len(names))
    more = f"\n    and {count - len(first):,} more" if count > len(first) else ""
    return f"{what}:" + "".join(f"\n    {each}" for each in first) + more


def _plain(row: Any) -> Any:
    return row.decode(errors="backslashreplace").rstrip("\r\n") if isinstance(row, bytes) else row
