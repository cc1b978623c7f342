"""Bytes of a file as lines: compressed or not, the whole file or a slice of it. What is wrong with them is reported."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from typing import IO, cast

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import read_errors
from bertsmith.base.log import size
from bertsmith.rows.compressed import damage_of, open_bytes
from bertsmith.rows.encodings import UTF8_MARK, TranscodedFile, unmarked

# A longer line is cut off here: one line must fit into a worker's memory several times over.
LONGEST_LINE = 32 << 20
_UNIVERSAL_LINE = re.compile(rb"[^\r\n]*(?:\r{1,2}\n|\r|\n)|[^\r\n]+")
CUT_OFF = "cut off there"
"""The last words of what is counted where text is too long."""
DAMAGED = "compressed files that are damaged, read up to the damage"


@dataclass(frozen=True)
class Slice:
    """Bytes begin..end of a file. What starts a row or document in that range is read from it, to that one's end.

    name: how ids and messages call the file. kind: what it is read as. codec: a key of `compressed.MAGIC`, or "" for
    plain. end: None for the rest of the file. A compressed file is one slice, but for bz2 dumps, which are cut at their
    blocks; begin and end are then bytes of the compressed file. encoding: what a byte order mark tells, "" for UTF-8;
    such a file is one slice too, and its bytes those that it has in UTF-8. cells: of a table, what separates its cells,
    followed by what quotes them where they may be quoted.
    """

    path: str
    name: str
    kind: str
    codec: str = ""
    begin: int = 0
    end: int | None = None
    encoding: str = ""
    cells: str = ""


@dataclass(frozen=True)
class Fault:
    """Something about the bytes of a file that their reader may have to count, or to stop at.

    what: in words that are the same wherever it happens. count, size_bytes: how much. where: for people. error: what to
    raise by a reader who takes nothing that is damaged or not text; None for what harms no text.
    """

    what: str
    count: int
    size_bytes: int
    where: str
    error: BertsmithError | None = None


Report = Callable[[Fault], None]
# (line, line before it) -> whether a row or document may start with the line.
IsStart = Callable[[bytes, bytes], bool]


def any_line(line: bytes, before: bytes) -> bool:
    """Where any line may start a row."""
    return True


def split_at_returns(lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """The lines, ended by a carriage return alone as well, as old programs of the Mac wrote them, or by two and a line
    feed, as Windows writes an end twice."""
    for begin, line in lines:
        if b"\r" in line[:-2]:
            yield from ((begin + found.start(), found[0]) for found in _UNIVERSAL_LINE.finditer(line))
        else:
            yield begin, line


def raise_fault(fault: Fault) -> None:
    """The Report of who stops at the first fault."""
    if fault.error is not None:
        raise fault.error


def open_text(path: str, codec: str, encoding: str) -> IO[bytes]:
    """Opens a file for reading as UTF-8, decompressed. Raises BertsmithError when it cannot be opened."""
    file = open_bytes(path, codec)
    return TranscodedFile(file, encoding) if encoding else file


def head_of(path: str | Path, codec: str, encoding: str, most: int) -> bytes:
    """The first `most` bytes in UTF-8, decompressed, without a byte order mark. Raises BertsmithError."""
    with read_errors(path), open_text(str(path), codec, encoding) as file:
        return unmarked(file.read(most + len(UTF8_MARK)), most)


class Lines:
    """The lines of a slice. read_bytes: how many bytes of it were read, once its last line was given.

    is_start: None where every slice begins at its first byte. A line that is too long is cut off, or without `cut`
    comes in several pieces. runs: several lines may come as one. early: faults are reported with the line that they are
    met at, not at the end of the file, for a reader who stops at them.
    """

    def __init__(
        self,
        part: Slice,
        is_start: IsStart | None,
        report: Report,
        *,
        cut: bool = True,
        runs: bool = False,
        early: bool = True,
    ) -> None:
        self._part, self._is_start, self._report = part, is_start, report
        self._cut, self._runs, self._early = cut, runs, early
        self.read_bytes = 0

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """The lines with the byte each begins at (in the decompressed file), line end included.

        A slice runs from the first start of a row at or after `begin` to the first at or after `end`. A compressed file
        that is damaged is read up to the damage. Raises BertsmithError where the disk fails.
        """
        part = self._part
        with closing(open_text(part.path, part.codec, part.encoding)) as file:
            first = position = next_start(file, part.begin, self._is_start)
            stop = None if part.end is None else next_start(file, part.end, self._is_start)
            plain = not part.codec and not part.encoding
            if plain:
                file.seek(position)
            try:
                while stop is None or position < stop:
                    line = _run(file, stop and stop - position) if self._runs and plain and position else b""
                    line = line or file.readline(LONGEST_LINE)
                    if self._early or not line:
                        _report_faults(file, part, position, self._report)
                    if not line:
                        break
                    begin, position = position, position + len(line)
                    if self._cut and len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                        skipped = self._skip_line(file, begin)
                        position, line = position + skipped, _whole_characters(line) if skipped else line
                    if begin == 0 and line.startswith(UTF8_MARK):
                        begin, line = len(UTF8_MARK), line[len(UTF8_MARK) :]
                        self._report(Fault("byte order marks of UTF-8, left out", 1, len(UTF8_MARK), part.name))
                    yield begin, line
            except OSError as error:
                where = f"{part.name}, after byte {position:,}"
                what = f"this file cannot be read to its end ({error})"
                raise BertsmithError(what, where, "check the disk") from error
        self.read_bytes = position - first

    def _skip_line(self, file: IO[bytes], begin: int) -> int:
        """Skips the rest of a line that is too long; returns its bytes."""
        skipped = 0
        while rest := file.readline(LONGEST_LINE):
            skipped += len(rest)
            if rest.endswith(b"\n"):
                break
        if skipped:
            what = f"lines longer than {size(LONGEST_LINE)}, {CUT_OFF}"
            self._report(Fault(what, 1, skipped, f"{self._part.name}, byte {begin:,}"))
        return skipped


def _run(file: IO[bytes], most: int | None) -> bytes:
    """The whole lines among the bytes that a plain file has buffered, at most `most` bytes; maybe none."""
    ahead: bytes = cast(BufferedReader, file).peek()
    return file.read(ahead.rfind(b"\n", 0, most) + 1)


def _report_faults(file: IO[bytes], part: Slice, position: int, report: Report) -> None:
    """Reports damage to the compression, and bytes that are no text."""
    if damage := damage_of(file):
        where = f"{part.name}, after byte {position:,} decompressed"
        error = BertsmithError(f"this file cannot be read to its end ({damage})", where, "copy or compress it again")
        report(Fault(DAMAGED, 1, 0, f"{where} ({damage})", error))
    report_bad_text(file, part, report)


def report_bad_text(file: IO[bytes], part: Slice, report: Report) -> None:
    """Reports bytes of a stream of `open_text` that are no text in an encoding other than UTF-8."""
    if isinstance(file, TranscodedFile) and file.bad_bytes:
        name, where = part.encoding.upper(), f"{part.name}, byte {file.first_bad:,}"
        what = f"bytes that are not {name}, replaced by U+FFFD"
        report(Fault(what, file.bad_bytes, file.bad_bytes, where, not_text(name, where)))


def not_text(encoding: str, where: str, reason: str = "") -> BertsmithError:
    """What is raised for bytes that are no text in the encoding."""
    return BertsmithError(f"this is not {encoding} text{f' ({reason})' if reason else ''}", where, "save it as UTF-8")


def next_start(file: IO[bytes], offset: int, is_start: IsStart | None) -> int:
    """The first byte at or after `offset` where a row may start, or the end of the file; 0 for 0."""
    if offset == 0 or is_start is None:
        return offset
    file.seek(offset - 1)
    position = offset - 1
    before, line_begins = b"?", False
    while line := file.readline(LONGEST_LINE):
        # What comes first is the tail of a line that began before: unknown, so it counts as no blank line.
        if line_begins and is_start(line, before):
            break
        before = line if line_begins else b"?"
        line_begins = line.endswith(b"\n")
        position += len(line)
    return position


def spaced(starts: Iterable[int], least: int) -> list[int]:
    """Those of the bytes at which something starts that lie at least `least` behind the one before, or the first byte
    of the file: where it is cut."""
    edges, last = list[int](), 0
    for start in starts:
        if start - last >= least:
            last = start
            edges.append(last)
    return edges


def _whole_characters(line: bytes) -> bytes:
    """A line that was cut off, without the character that the cut went through."""
    end = len(line)
    while end and line[end - 1] & 0xC0 == 0x80:
        end -= 1
    return line[: max(end - 1, 0)] if line[end - 1] & 0x80 else line
