"""How a slice of a source is read into an account: what is wrong is counted, or stops the reading under --strict."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.tally import Entry, Tally
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import ReadOptions
from bertsmith.rows.lines import Fault, IsStart, Lines, Slice, not_text

NOT_UTF8 = "bytes that are not UTF-8, replaced by U+FFFD"
_REPLACEMENT = "\ufffd".encode()
SURROGATES = re.compile("[\ud800-\udfff]")


def grown_by(changed: Tally) -> int:
    """How many bytes more texts have by U+FFFD in place of what was not UTF-8."""
    entry = changed.get(NOT_UTF8, Entry())
    return entry.count * len(_REPLACEMENT) - entry.bytes


@dataclass(frozen=True)
class Reading:
    """A slice that is being read, and the account of it."""

    part: Slice
    options: ReadOptions
    account: Account

    def where(self, byte: int) -> str:
        """A place in the file, for people."""
        return f"{self.part.name}, byte {byte:,}"

    def lines(self, is_start: IsStart | None, cut: bool = True, runs: bool = False) -> Iterator[tuple[int, bytes]]:
        """The slice's lines, see `rows.lines.Lines`; what is wrong with them is counted."""
        strict = self.options.strict
        lines = Lines(self.part, is_start, self.report, cut=cut, runs=runs, early=strict)
        yield from lines
        self.account.stream_bytes += lines.read_bytes

    def report(self, fault: Fault) -> None:
        """Counts a fault, or raises its error under `strict`."""
        if fault.error is not None:
            self._refuse(fault.error)
        self.account.changed.note(fault.what, fault.count, fault.size_bytes, fault.where)

    def _refuse(self, error: BertsmithError) -> None:
        if self.options.strict:
            fix = f"{error.fix}, or omit --strict to have it counted and the rest read"
            raise BertsmithError(error.what, error.where, fix) from error

    def decode(self, raw: bytes, begin: int, name: str = "") -> str:
        """UTF-8 to text; what is not UTF-8 becomes U+FFFD, counted with file and byte.

        begin: the byte of `name` (the file, unless it is given) at which `raw` begins. Raises BertsmithError under
        `strict`.
        """
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            where = f"{name or self.part.name}, byte {begin + error.start:,}"
            self._refuse(not_text("UTF-8", where, error.reason))
            text = raw.decode(errors="replace")
            count = text.count("\ufffd") - raw.count(_REPLACEMENT)
            size_bytes = len(raw) - len(text.encode()) + count * len(_REPLACEMENT)
            self.account.changed.note(NOT_UTF8, count, size_bytes, where)
            return text

    def drop(self, fault: str, size_bytes: int, where: str) -> None:
        """Counts a row or page as a document that was read and dropped. Raises BertsmithError under `strict`."""
        self._refuse(BertsmithError(f"found {fault}", where, "correct it"))
        self.account.read(size_bytes)
        self.account.drop(fault, size_bytes, where)

    def whole_text(self, text: str) -> str:
        """The text without halves of a surrogate pair: JSON can spell them, and no encoding can hold them."""
        if text.isascii():
            return text
        text, count = SURROGATES.subn("\ufffd", text)
        if count:
            self.account.changed.note("lone surrogates, replaced by U+FFFD", count, example=self.part.name)
        return text


def no_such_field(field: str, found: list[str], where: str) -> BertsmithError:
    """The error for rows of a source without such a field: it lists the fields found and which is most like it."""
    listed = ", ".join(f"'{name}'" for name in found) or "none"
    guess = nearest(field, found) if found else ""
    hint = f"; {guess}" if guess.startswith("did you mean") else ""
    by = "name the one with the text by --text-field of `bertsmith prepare`, or leave the file out"
    return BertsmithError(f"its rows have no field '{field}'", where, f"fields found: {listed}{hint}; {by}")
