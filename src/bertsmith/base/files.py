"""Files that are written whole or not at all, and the one message for a disk that refuses."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from bertsmith.base.errors import BertsmithError

_DISK_FIXES = {
    errno.ENOSPC: "free some space or choose another folder, then run the command again; what was finished is intact",
    errno.EDQUOT: "your quota is used up; free some space or choose another folder, then run the command again",
    errno.EROFS: "choose a folder on a disk that can be written to",
    errno.EACCES: "choose a folder that you may write to, or mend its permissions",
}


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns a full, read-only or forbidden disk into a BertsmithError that names `path`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FIXES:
            raise
        raise BertsmithError(
            f"could not write: {os.strerror(error.errno or 0)}", path, _DISK_FIXES[error.errno]
        ) from error


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Calls `write` on a file beside `path`, syncs it and renames it into place: readers see the old file or the new.

    Raises BertsmithError when the disk is full or read-only; the old file, if any, is then untouched.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with disk_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(aside, "wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text whole or not at all."""
    write_whole(path, lambda file: file.write(text.encode()))


def write_json(path: Path, value: Any) -> None:
    """Writes JSON whole or not at all, readable by people: indented, keys in the order given."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, fix: str = "") -> Any:
    """Reads JSON. Raises BertsmithError when the file is missing or broken."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BertsmithError("this file is missing", path, fix) from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise BertsmithError(f"this file is not JSON ({error})", path, fix) from error


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Gives a folder to write into that replaces `path` at the end; on an error nothing changes."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    with disk_errors(path):
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            yield aside
            for file in aside.rglob("*"):
                if file.is_file():
                    sync(file)
            old = path.with_name(f".{path.name}.{os.getpid()}.old")
            if path.exists():
                os.replace(path, old)
            os.replace(aside, path)
            sync(path.parent)
            shutil.rmtree(old, ignore_errors=True)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def sync(path: Path) -> None:
    """Asks the system to put a file, or the entries of a folder, on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    return checksum(path, "sha256")


def checksum(path: Path, algorithm: str) -> str:
    """A file's checksum by an algorithm that hashlib knows, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
