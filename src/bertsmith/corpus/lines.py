"""Bytes of a source as a stream of lines: packed or not, a whole file or a slice of it, damage named and counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from io import BufferedReader
from typing import IO, cast

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import size
from bertsmith.corpus.accounting import Account
from bertsmith.rows.compressed import damage_of, open_bytes
from bertsmith.rows.encodings import UTF8_MARK, TranscodedFile

# A longer line is cut off here: one line must fit into a worker's memory several times over.
LONGEST_LINE = 32 << 20
NOT_UTF8 = "bytes that are not UTF-8, replaced by U+FFFD"
DAMAGED = "packed files that are damaged, read up to the damage"


@dataclass(frozen=True)
class Slice:
    """Bytes begin..end of a file. What starts a document in that range is read from it, to that document's end.

    name: how ids and messages call the file. kind: a key of `kinds.KINDS`. codec: a key of `codecs.MAGIC`, or "" for
    plain. end: None for the rest of the file. A packed file is one slice, but for bz2 dumps, which are cut at their
    blocks; begin and end are then bytes of the packed file. encoding: what a byte order mark tells, "" for UTF-8; such
    a file is one slice too, and its bytes those that it has in UTF-8. cells: of a table, what parts its cells, followed
    by what quotes them where they may be quoted.
    """

    path: str
    name: str
    kind: str
    codec: str = ""
    begin: int = 0
    end: int | None = None
    encoding: str = ""
    cells: str = ""


# (line, line before it) -> whether a document may start with the line.
IsStart = Callable[[bytes, bytes], bool]


def open_text(path: str, codec: str, encoding: str) -> IO[bytes]:
    """Opens a file for reading as UTF-8, unpacked. Raises BertsmithError when it cannot be opened."""
    file = open_bytes(path, codec)
    return TranscodedFile(file, encoding) if encoding else file


def lines_of(
    part: Slice, is_start: IsStart | None, account: Account, strict: bool, cut: bool = True, runs: bool = False
) -> Iterator[tuple[int, bytes]]:
    """The lines of a slice with the byte each begins at (in the unpacked stream), line end included.

    A slice runs from the first start of a document at or after `begin` to the first at or after `end`. A line that is
    too long is cut off, or without `cut` comes in several pieces. With `runs`, several lines may come as one. A packed
    file that is damaged is read up to the damage, and that counted; under `strict` it raises BertsmithError.
    """
    with closing(open_text(part.path, part.codec, part.encoding)) as file:
        first = position = next_start(file, part.begin, is_start)
        stop = None if part.end is None else next_start(file, part.end, is_start)
        plain = not part.codec and not part.encoding
        if plain:
            file.seek(position)
        try:
            while stop is None or position < stop:
                line = _run(file, stop and stop - position) if runs and plain and position else b""
                line = line or file.readline(LONGEST_LINE)
                if strict or not line:
                    _note_faults(file, part, position, account, strict)
                if not line:
                    break
                begin, position = position, position + len(line)
                if cut and len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                    skipped = _skip_line(file, part, begin, account)
                    position, line = position + skipped, _whole_characters(line) if skipped else line
                if begin == 0 and line.startswith(UTF8_MARK):
                    begin, line = len(UTF8_MARK), line[len(UTF8_MARK) :]
                    account.changed.note("byte order marks of UTF-8, left out", 1, len(UTF8_MARK), part.name)
                yield begin, line
        except OSError as error:
            where = f"{part.name}, after byte {position:,}"
            raise BertsmithError(f"this file cannot be read to its end ({error})", where, "check the disk") from error
        account.stream_bytes += position - first


def _run(file: IO[bytes], most: int | None) -> bytes:
    """The whole lines among the bytes that a plain file has at hand, at most `most` bytes; maybe none."""
    ahead: bytes = cast(BufferedReader, file).peek()
    return file.read(ahead.rfind(b"\n", 0, most) + 1)


def _note_faults(file: IO[bytes], part: Slice, position: int, account: Account, strict: bool) -> None:
    """Counts what was wrong with the packing and with an encoding other than UTF-8, or raises under `strict`."""
    packed = file.source if isinstance(file, TranscodedFile) else file
    if damage := damage_of(packed):
        where = f"{part.name}, after byte {position:,} unpacked"
        if strict:
            raise BertsmithError(f"this file cannot be read to its end ({damage})", where, "copy or pack it again")
        account.changed.note(DAMAGED, example=f"{where} ({damage})")
    if isinstance(file, TranscodedFile) and file.bad_bytes:
        where = f"{part.name}, byte {file.first_bad:,}"
        name = part.encoding.upper()
        if strict:
            raise _not_text(name, where)
        account.changed.note(f"bytes that are not {name}, replaced by U+FFFD", file.bad_bytes, file.bad_bytes, where)


def _not_text(encoding: str, where: str, reason: str = "") -> BertsmithError:
    fix = "save the file as UTF-8, or leave --strict away to have such bytes replaced and counted"
    return BertsmithError(f"this is not {encoding} text{f' ({reason})' if reason else ''}", where, fix)


def next_start(file: IO[bytes], offset: int, is_start: IsStart | None) -> int:
    """The first byte at or after `offset` where a document may start, or the end of the file; 0 for 0."""
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


def _skip_line(file: IO[bytes], part: Slice, begin: int, account: Account) -> int:
    """Passes over the rest of a line that is too long; returns its bytes."""
    skipped = 0
    while rest := file.readline(LONGEST_LINE):
        skipped += len(rest)
        if rest.endswith(b"\n"):
            break
    if skipped:
        what = f"lines longer than {size(LONGEST_LINE)}, cut off there"
        account.changed.note(what, 1, skipped, f"{part.name}, byte {begin:,}")
    return skipped


def _whole_characters(line: bytes) -> bytes:
    """A line that was cut off, without the character that the cut went through."""
    end = len(line)
    while end and line[end - 1] & 0xC0 == 0x80:
        end -= 1
    return line[: max(end - 1, 0)] if line[end - 1] & 0x80 else line


def decode(raw: bytes, name: str, begin: int, account: Account, strict: bool) -> str:
    """UTF-8 to text; what is not UTF-8 becomes U+FFFD, counted with file and byte.

    Raises BertsmithError under `strict`. begin: the byte of the file at which `raw` begins.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        where = f"{name}, byte {begin + error.start:,}"
        if strict:
            raise _not_text("UTF-8", where, error.reason) from error
        text = raw.decode(errors="replace")
        count = text.count("\ufffd") - raw.count("\ufffd".encode())
        account.changed.note(NOT_UTF8, count, count, where)
        return text
