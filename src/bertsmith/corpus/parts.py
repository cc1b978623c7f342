"""Parts that are made once: written aside, renamed when whole, with a mark that says of what they were made.

A preparation that was killed finds the parts that carry the right mark and makes the others again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError

MARK = "part.done"


def fingerprint(*values: Any) -> str:
    """A hash of values that JSON can hold: equal values, equal hash."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def make_once(folder: Path, made_of: str, make: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Makes the part `folder` unless it is there, made of the same; returns what `make` returned, then or earlier.

    make: writes the part's files into the folder it is given and returns what JSON can hold. Raises BertsmithError when
    the disk refuses; there is then no part. Nothing waits for the disk here: a part that a power cut spoilt does not
    have the checksums of its mark, and is made again.
    """
    found = finished(folder, made_of)
    if found is not None:
        return found
    aside = folder.with_name(f".{folder.name}.{os.getpid()}.part")
    with files.disk_errors(folder):
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            result = make(aside)
            checks = {file.name: _checksum(file) for file in sorted(aside.iterdir())}
            mark = {"made_of": made_of, "files": checks, "result": result}
            (aside / MARK).write_text(json.dumps(mark), encoding="utf-8")
            shutil.rmtree(folder, ignore_errors=True)
            aside.replace(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return result


def finished(folder: Path, made_of: str) -> dict[str, Any] | None:
    """What making the part returned, where it is whole and made of the same; else None."""
    try:
        mark = json.loads((folder / MARK).read_text(encoding="utf-8"))
        if mark["made_of"] != made_of or any(
            _checksum(folder / name) != check for name, check in mark["files"].items()
        ):
            return None
        return dict(mark["result"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _checksum(path: Path) -> list[int]:
    """Size and CRC-32, which tell a file that was cut short or never reached the disk."""
    size = check = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            size += len(block)
            check = zlib.crc32(block, check)
    return [size, check]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a folder for this process. Raises BertsmithError when another one holds it; a killed one holds nothing."""
    with files.disk_errors(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            file = open(folder / ".lock", "ab")  # noqa: SIM115  closed below, at which the system lets go
        except (NotADirectoryError, FileExistsError) as error:
            raise BertsmithError("a file is in the way of this folder", folder, "give another folder") from error
    try:
        if not _lock(file.fileno()):
            fix = "wait for it to end, or choose another folder"
            raise BertsmithError("another process is preparing a corpus here", folder, fix)
        yield
    finally:
        file.close()


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> bool:
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _lock(handle: int) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
