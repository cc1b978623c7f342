"""Text in UTF-16 or UTF-32, by its byte order mark: read as the stream of bytes that it would be in UTF-8."""

from __future__ import annotations

import codecs
import io
import unicodedata
from collections import Counter
from pathlib import Path
from typing import IO, TYPE_CHECKING

from bertsmith.base.errors import BertsmithError

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

UTF8_MARK = codecs.BOM_UTF8
# By their byte order marks; that of UTF-32-LE begins with that of UTF-16-LE, so it stands first.
_MARKS = {
    "utf-32-le": codecs.BOM_UTF32_LE,
    "utf-32-be": codecs.BOM_UTF32_BE,
    "utf-16-le": codecs.BOM_UTF16_LE,
    "utf-16-be": codecs.BOM_UTF16_BE,
}
_BLOCK = 1 << 16
# Control characters, private ones, and what stands for none.
_NO_TEXT = ("Cc", "Co", "Cn")
_REPLACEMENT = "\ufffd".encode()


def encoding_of(head: bytes) -> str:
    """The encoding that a byte order mark at the beginning of a file tells, or "" for UTF-8, with a mark or without."""
    return next((encoding for encoding, mark in _MARKS.items() if head.startswith(mark)), "")


def unmarked(head: bytes, most: int) -> bytes:
    """The first `most` bytes without a byte order mark of UTF-8. head: what they are taken from, with room for one."""
    return head.removeprefix(UTF8_MARK)[:most]


def unmarked_encoding(head: bytes) -> str:
    """UTF-16 or UTF-32 without a byte order mark, or "" for anything else: by the zero bytes of spaces, separators and
    line ends. ASCII in UTF-16 has many of them; other text is none of UTF-8, which may have some too."""
    zeros = [head[place::2].count(0) for place in (0, 1)]
    if not any(zeros):
        return ""
    for encoding in ("utf-32-le", "utf-32-be"):
        if reads_as(head, encoding):
            return encoding
    for encoding, high in sorted((("utf-16-le", 1), ("utf-16-be", 0)), key=lambda each: -zeros[each[1]]):
        many = 3 * zeros[high] >= len(head)
        if reads_as(head, encoding) and (many or not reads_as(head.replace(b"\0", b""), "utf-8")):
            return encoding
    return ""


def reads_as(head: bytes, encoding: str) -> bool:
    """Whether bytes are the beginning of a text, of which at most one character in a hundred is a control character or
    none at all."""
    counts = Counter(codecs.getincrementaldecoder(encoding)("replace").decode(head))
    lost = sum(count for each, count in counts.items() if _is_no_text(each))
    return bool(counts) and 100 * lost <= counts.total()


def _is_no_text(character: str) -> bool:
    no_text = character == "\ufffd" or unicodedata.category(character) in _NO_TEXT
    return no_text and not character.isspace()


def check_marked(head: bytes, where: str | Path, codec: str = "") -> None:
    """Raises BertsmithError for text of which only a byte order mark would tell how to read it. head: what it begins
    with. codec: of the file, where its fix is to tell that it is compressed."""
    if not encoding_of(head) and (encoding := unmarked_encoding(head).upper()):
        name = encoding[:-3] + encoding[-2:]  # as iconv knows it
        fix = f"save it as UTF-8, as by: iconv -f {name} -t UTF-8 FILE > new-FILE"
        fix = f"decompress it, and {fix}" if codec else fix
        raise BertsmithError(f"this looks like {name} without a byte order mark", where, fix)


class _Transcoded(io.RawIOBase):
    def __init__(self, file: IO[bytes], encoding: str) -> None:
        self._file = file
        self._decode = codecs.lookup(encoding).decode
        self._unit = 4 if "32" in encoding else 2
        self._waiting, self._ready, self._ended = b"", b"", False
        self._position = len(file.read(len(_MARKS[encoding])))
        self.bad_bytes, self.first_bad = 0, -1

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        while not self._ready and not self._ended:
            block = self._file.read(_BLOCK)
            self._ended = not block
            self._waiting += block
            self._ready = self._converted()
        count = min(len(view), len(self._ready))
        view[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()

    def _converted(self) -> bytes:
        """What waits, as UTF-8; what is no text is replaced. A character whose end is not read yet waits on."""
        found = []
        while self._waiting:
            try:
                text, used = self._decode(self._waiting, "strict")
                bad = b""
            except UnicodeDecodeError as error:
                text, used = self._decode(self._waiting[: error.start], "strict")
                bad = self._waiting[error.start : error.end]
                if len(self._waiting) - error.start < 2 * self._unit and not self._ended:
                    bad = b""
            found.append(text.encode())
            if bad:
                self.first_bad = self._position + used if self.first_bad < 0 else self.first_bad
                self.bad_bytes += len(bad)
                found.append(_REPLACEMENT)
            self._position += used + len(bad)
            self._waiting = self._waiting[used + len(bad) :]
            if not used and not bad:
                break
        return b"".join(found)


class TranscodedFile(io.BufferedReader):
    """A stream in UTF-8. source: the file it comes from, closed with it.

    bad_bytes: how many bytes read so far were no text, replaced by U+FFFD. first_bad: where the first stood, or -1.
    """

    def __init__(self, source: IO[bytes], encoding: str) -> None:
        self.source = source
        self._transcoded = _Transcoded(source, encoding)
        super().__init__(self._transcoded)

    @property
    def bad_bytes(self) -> int:
        return self._transcoded.bad_bytes

    @property
    def first_bad(self) -> int:
        return self._transcoded.first_bad
