"""Parts that are made once: written aside, renamed when whole, with a mark that says of what they were made.

A preparation that was killed finds the parts that carry the right mark and makes the others again.
"""

from __future__ import annotations

import hashlib
import json
import sys
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
    the disk refuses; there is then no part.
    """
    found = finished(folder, made_of)
    if found is not None:
        return found
    with files.whole_folder(folder) as aside:
        result = make(aside)
        sizes = {file.name: file.stat().st_size for file in sorted(aside.iterdir())}
        mark = {"made_of": made_of, "files": sizes, "result": result}
        (aside / MARK).write_text(json.dumps(mark), encoding="utf-8")
    return result


def finished(folder: Path, made_of: str) -> dict[str, Any] | None:
    """What making the part returned, where it is whole and made of the same; else None."""
    try:
        mark = json.loads((folder / MARK).read_text(encoding="utf-8"))
        whole = all((folder / name).stat().st_size == size for name, size in mark["files"].items())
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return dict(mark["result"]) if whole and mark["made_of"] == made_of else None


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds a folder for this process. Raises BertsmithError when another one holds it; a killed one holds nothing."""
    with files.disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / ".lock", "ab")  # noqa: SIM115  closed below, at which the system lets go
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
