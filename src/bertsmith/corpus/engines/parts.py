"""Parts that are made once: written aside, renamed when whole, with a mark that says of what they were made.

A preparation that was killed finds the parts that carry the right mark and makes the others again, those of another
version too, whose rules may be others. The workers need not know of each other: two that make the same part, on one
machine or on two that share a folder, leave one whole part, whoever is first.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import secrets
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bertsmith.base import files
from bertsmith.corpus.engines.nodes import versions

MARK = "part.done"
# The folder in a corpus folder in which a preparation works.
WORK = ".work"


def fingerprint(*values: Any) -> str:
    """A hash of values that JSON can hold: equal values, equal hash."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Part:
    """What a part is made of, and where; further fields say how. made_of: a fingerprint of all that decides."""

    folder: Path
    made_of: str


AnyPart = TypeVar("AnyPart", bound=Part)


def part_folder(parts: Path, number: int) -> Path:
    """The folder of a part of a stage."""
    return parts / f"{number:05d}"


def makes_part(make: Callable[[AnyPart, Path], dict[str, Any]]) -> Callable[[AnyPart], dict[str, Any]]:
    """Of a function that writes a part's files into the folder it is given, one that makes the part once."""

    @functools.wraps(make)
    def made(part: AnyPart) -> dict[str, Any]:
        return make_once(part.folder, part.made_of, lambda folder: make(part, folder))

    return made


def make_once(folder: Path, made_of: str, make: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Makes the part `folder` unless it is there, made of the same; returns what `make` returned, then or earlier.

    make: writes the part's files into the folder it is given and returns what JSON can hold. Raises BertsmithError when
    the disk refuses; there is then no part. Nothing waits for the disk here: a part that a power cut damaged does not
    have the checksums of its mark, and is made again. What is published is synced (see `stages/publish`).
    """
    found = finished(folder, made_of)
    if found is not None:
        return found
    aside = _aside(folder)
    with files.disk_errors(folder):
        try:
            aside.mkdir(parents=True)
            result = make(aside)
            checks = {file.name: _checksum(file) for file in sorted(aside.iterdir())}
            mark = {"made_of": made_of, "versions": fingerprint(versions()), "files": checks, "result": result}
            (aside / MARK).write_text(json.dumps(mark), encoding="utf-8")
            earlier = _put_in_place(aside, folder, made_of)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return result if earlier is None else earlier


def _aside(folder: Path) -> Path:
    """A new name beside `folder`, which no other process has, of this machine or another one."""
    return folder.with_name(f".{folder.name}.{secrets.token_hex(6)}.part")


def _put_in_place(aside: Path, folder: Path, made_of: str) -> dict[str, Any] | None:
    """Renames a part into place. A whole part of the same that came first stays, for others may be reading it; what
    making that one returned is returned."""
    while True:
        try:
            aside.rename(folder)
            return None
        except OSError as error:
            # NFS repeats a request whose answer was lost, and then the name is gone.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                raise
            if (earlier := finished(folder, made_of)) is not None:
                return earlier
            if error.errno == errno.ENOENT:
                raise
        stale = _aside(folder)
        with suppress(FileNotFoundError):
            folder.rename(stale)
        shutil.rmtree(stale, ignore_errors=True)


def finished(folder: Path, made_of: str) -> dict[str, Any] | None:
    """What making the part returned, where it is whole, and made of the same by the same versions; else None."""
    try:
        mark = json.loads((folder / MARK).read_text(encoding="utf-8"))
        if mark["made_of"] != made_of or mark["versions"] != fingerprint(versions()):
            return None
        if any(_checksum(folder / name) != check for name, check in mark["files"].items()):
            return None
        return dict(mark["result"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def by_other_versions(work: Path) -> bool:
    """Whether there are parts that other versions of Bertsmith, Python or a library made."""
    ours = fingerprint(versions())
    for mark in work.glob(f"*/*/{MARK}"):
        with suppress(OSError, ValueError):
            made = json.loads(mark.read_text(encoding="utf-8"))
            if isinstance(made, dict) and made.get("versions") != ours:
                return True
    return False


def _checksum(path: Path) -> list[int]:
    """Size and CRC-32, which tell a file that was cut short or never reached the disk."""
    return [path.stat().st_size, files.crc32(path)]
