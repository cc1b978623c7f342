"""Compressed files as a stream of bytes: gz, bz2, xz and zst, of one member or many.

The standard library's readers raise at damage and lose with it what they had unpacked of the line. Here the stream
ends at the damage, after all that could be unpacked before it, and says what it was.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import read_errors

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

# The formats, by the bytes their members begin with. A zst file may also begin with a frame that is to be skipped.
MAGIC = {"gz": b"\x1f\x8b", "bz2": b"BZh", "xz": b"\xfd7zXZ\x00", "zst": b"\x28\xb5\x2f\xfd"}
_SKIPPABLE = tuple(bytes([0x50 + number]) + b"\x2a\x4d\x18" for number in range(16))
# zip and the office documents that are one, 7z, RAR, and older office documents.
_ARCHIVES = (b"PK\x03\x04", b"7z\xbc\xaf\x27\x1c", b"Rar!\x1a\x07", b"\xd0\xcf\x11\xe0")
# What tar, of POSIX and of GNU, writes behind a name, a mode, and the like: of text the zero byte is no part.
_TAR, _TAR_PLACE = (b"ustar\0", b"ustar  \0"), 257
# About how many bytes of text a compressed byte holds.
UNPACKED = 4
_MAGIC_BYTES = max(map(len, MAGIC.values()))
# Decompressed in steps this small, at most one of them is lost to damage after it.
_STEP = 1 << 14
# zst gives all that its input holds, up to 128 kB for every 4 bytes: so a bomb fits into memory.
_ZST_INPUT = 1 << 12
_INPUT = 1 << 15
_LARGEST_ZST_WINDOW = 1 << 31  # of `zstd --ultra --long=31`
_BUFFER = 1 << 18
CORRUPT = (EOFError, zlib.error, lzma.LZMAError, OSError, ValueError)
"""What decompressors raise for bytes that they did not write."""


class _Decoder(Protocol):
    """The decompressor of one member, with the interface of bz2.BZ2Decompressor."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _GzDecoder:
    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


class _ZstDecoder:
    def __init__(self) -> None:
        zstandard = _zst_library()
        self._inner = zstandard.ZstdDecompressor(max_window_size=_LARGEST_ZST_WINDOW).decompressobj()
        self._damage = zstandard.ZstdError
        self._ready = b""

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof) and not self._ready

    @property
    def needs_input(self) -> bool:
        return not self._ready and not self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inner.unused_data)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        try:
            ready = self._ready or (self._inner.decompress(data) if data else b"")
        except self._damage as error:
            raise ValueError(str(error)) from error
        self._ready = ready[max_length:]
        return bytes(ready[:max_length])


def _zst_library(path: str | Path = "") -> Any:
    """The module `zstandard`. Raises BertsmithError where it is not installed."""
    try:
        import zstandard
    except ImportError as error:
        fix = "install it with: pip install 'bertsmith[zstd]'"
        raise BertsmithError("reading zst files needs the package zstandard", path, fix) from error
    return zstandard


def check_readable(codec: str, path: str | Path) -> None:
    """Raises BertsmithError where a package is missing without which this cannot be decompressed."""
    if codec == "zst":
        _zst_library(path)


_DECODERS: dict[str, Callable[[], _Decoder]] = {
    "gz": _GzDecoder,
    "bz2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ),
    "zst": _ZstDecoder,
}


class _Members(io.RawIOBase):
    """The members of a compressed file, one after the other. head: what was read of it already. damage: what ended the
    stream early, or ""."""

    def __init__(self, file: IO[bytes], codec: str, head: bytes = b"") -> None:
        self._file, self._codec = file, codec
        self._decoder = _DECODERS[codec]()
        self._input, self._ended = head, False
        self._input_bytes = _ZST_INPUT if codec == "zst" else _INPUT
        self.damage = ""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: WriteableBuffer) -> int:
        view = memoryview(buffer).cast("B")
        try:
            while not self._ended:
                if self._decoder.eof:
                    self._next_member()
                    continue
                data = self._step(min(len(view), _STEP))
                if data:
                    view[: len(data)] = data
                    return len(data)
        except CORRUPT as error:
            self.damage, self._ended = str(error) or "damaged", True
        return 0

    def close(self) -> None:
        self._file.close()
        super().close()

    def _step(self, most: int) -> bytes:
        if not self._decoder.needs_input:
            return self._decoder.decompress(b"", most)
        data, self._input = self._input or self._file.read(self._input_bytes), b""
        found = self._decoder.decompress(data, most)
        if not data and not found and not self._decoder.eof:
            raise EOFError("it ends before its end mark")
        return found

    def _next_member(self) -> None:
        """Continues with the member after the one that ended; zeros between them are padding."""
        rest = self._decoder.unused_data.lstrip(b"\0")
        while len(rest) < _MAGIC_BYTES and (more := self._file.read(self._input_bytes)):
            rest = (rest + more).lstrip(b"\0")
        if not rest:
            self._ended = True
        elif packing(rest) != self._codec:
            raise ValueError("bytes after its end mark that are not compressed")
        else:
            self._decoder, self._input = _DECODERS[self._codec](), rest


class CompressedFile(io.BufferedReader):
    """A decompressed stream. It ends where the file is damaged; `damage` then says how. head: what was read of the file
    already."""

    def __init__(self, file: IO[bytes], codec: str, head: bytes = b"") -> None:
        self._members = _Members(file, codec, head)
        super().__init__(self._members, _BUFFER)

    @property
    def damage(self) -> str:
        return self._members.damage


def damage_of(file: IO[bytes]) -> str:
    """What ended the stream of `open_bytes`, or one made of it, early; "" where it is sound so far."""
    opened = getattr(file, "source", file)
    return opened.damage if isinstance(opened, CompressedFile) else ""


def open_bytes(path: str | Path, codec: str) -> IO[bytes]:
    """Opens a file for reading, decompressed. codec: a key of MAGIC, or "" for plain; a plain file is seekable.

    Raises BertsmithError when it cannot be opened, and where a library for it is missing.
    """
    check_readable(codec, path)
    try:
        with read_errors(path):
            file = open(path, "rb", buffering=_BUFFER)  # noqa: SIM115  closed with the stream that is returned
    except FileNotFoundError as error:
        raise BertsmithError("this file does not exist", path, "check the path") from error
    return CompressedFile(file, codec) if codec else file


def peek(path: str | Path, codec: str, most: int) -> bytes:
    """The first `most` bytes, decompressed; fewer where the file is damaged. Raises BertsmithError."""
    with read_errors(path), open_bytes(path, codec) as file:
        return file.read(most)


def packing(head: bytes) -> str:
    """The key of MAGIC that first bytes tell, or ""."""
    if head.startswith(_SKIPPABLE):
        return "zst"
    return next((codec for codec, magic in MAGIC.items() if head.startswith(magic)), "")


def is_archive(head: bytes) -> bool:
    """Whether first bytes are those of several files in one, or of an office document."""
    return head.startswith(_ARCHIVES) or head.startswith(_TAR, _TAR_PLACE)


def codec_of(path: str | Path) -> str:
    """The key of MAGIC that a file's first bytes tell, or "". Raises BertsmithError when it cannot be opened."""
    return packing(peek(path, "", _MAGIC_BYTES))


def suffix_within(path: str | Path, codec: str) -> str:
    """The ending of a file's name in small letters, such as ".csv", without the one that says how it is compressed."""
    name = str(path).lower()
    return Path(name.removesuffix(f".{codec}") if codec else name).suffix
