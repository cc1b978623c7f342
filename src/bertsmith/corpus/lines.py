"""Bytes of a source as a stream of lines: packed or not, a whole file or a slice of it, damage named and counted."""

from __future__ import annotations

import bz2
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import size
from bertsmith.corpus.account import Account

# A longer line is cut off here: one line must fit into a worker's memory several times over.
LONGEST_LINE = 32 << 20
_DAMAGE = (EOFError, OSError, zlib.error, lzma.LZMAError)
_BOM = b"\xef\xbb\xbf"


# A packing, by the bytes its files begin with.
MAGIC = {"gz": b"\x1f\x8b", "bz2": b"BZh", "xz": b"\xfd7zXZ\x00"}


@dataclass(frozen=True)
class Slice:
    """Bytes begin..end of a file. What starts a document in that range is read from it, to that document's end.

    name: how ids and messages call the file. kind: a key of `kinds.KINDS`. codec: a key of MAGIC, or "" for plain.
    end: None for the rest of the file; a packed file is always one slice.
    """

    path: str
    name: str
    kind: str
    codec: str = ""
    begin: int = 0
    end: int | None = None


# (line, line before it) -> whether a document may start with the line.
IsStart = Callable[[bytes, bytes], bool]


def open_bytes(path: str, codec: str) -> IO[bytes]:
    """Opens a file for reading, unpacking it. Raises BertsmithError when it cannot be opened."""
    try:
        match codec:
            case "gz":
                return cast(IO[bytes], gzip.open(path, "rb"))
            case "bz2":
                return bz2.open(path, "rb")
            case "xz":
                return lzma.open(path, "rb")
            case _:
                return open(path, "rb")
    except OSError as error:
        what = f"could not read ({error.strerror or error})"
        raise BertsmithError(what, path, "check the path and its permissions") from error


def lines_of(part: Slice, is_start: IsStart | None, account: Account, strict: bool) -> Iterator[tuple[int, bytes]]:
    """The lines of a slice with the byte each begins at (in the unpacked stream), line end included.

    A slice runs from the first start of a document at or after `begin` to the first at or after `end`. A packed file
    that is damaged is read up to the damage, and that counted; under `strict` it raises BertsmithError.
    """
    with closing(open_bytes(part.path, part.codec)) as file:
        first = position = next_start(file, part.begin, is_start)
        stop = None if part.end is None else next_start(file, part.end, is_start)
        if not part.codec:
            file.seek(position)
        try:
            while stop is None or position < stop:
                line = file.readline(LONGEST_LINE)
                if not line:
                    break
                begin, position = position, position + len(line)
                if len(line) == LONGEST_LINE and not line.endswith(b"\n"):
                    position += _skip_line(file, part, begin, account)
                yield begin, line.removeprefix(_BOM) if begin == 0 else line
        except _DAMAGE as error:
            where = f"{part.name}, after byte {position:,} unpacked"
            if strict or not part.codec:
                raise BertsmithError(
                    f"this file cannot be read to its end ({error})", where, "copy or pack it again"
                ) from error
            account.changed.note("packed files that are damaged, read up to the damage", example=where)
        account.stream_bytes += position - first


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


def decode(raw: bytes, name: str, begin: int, account: Account, strict: bool) -> str:
    """UTF-8 to text; what is not UTF-8 becomes U+FFFD, counted with file and byte.

    Raises BertsmithError under `strict`. begin: the byte of the file at which `raw` begins.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        where = f"{name}, byte {begin + error.start:,}"
        if strict:
            fix = "save the file as UTF-8, or leave --strict away to have such bytes replaced and counted"
            raise BertsmithError(f"this is not UTF-8 text ({error.reason})", where, fix) from error
        text = raw.decode(errors="replace")
        count = text.count("\ufffd") - raw.count("\ufffd".encode())
        account.changed.note("bytes that are not UTF-8, replaced by U+FFFD", count, count, where)
        return text


def peek(path: Path, codec: str, most: int) -> bytes:
    """The first `most` bytes, unpacked; what can be had of them where the file is damaged. Raises BertsmithError."""
    head = b""
    with closing(open_bytes(str(path), codec)) as file:
        try:
            while len(head) < most and (line := file.readline(most - len(head))):
                head += line
        except _DAMAGE as error:
            if not codec:
                raise BertsmithError(f"could not read ({error})", path, "check the disk") from error
    return head


def codec_of(path: Path) -> str:
    """The key of MAGIC that the file's first bytes tell, or "". Raises BertsmithError when it cannot be opened."""
    head = peek(path, "", 8)
    return next((codec for codec, magic in MAGIC.items() if head.startswith(magic)), "")
