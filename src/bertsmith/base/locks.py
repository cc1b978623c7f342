"""A folder held by one process, or by several that share it."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import warn


@contextmanager
def locked(folder: Path, shared: bool = False, doing: str = "preparing a corpus here") -> Iterator[None]:
    """Holds a folder for this process, or for it and others that share it; a killed process holds nothing.

    Raises BertsmithError when others hold it otherwise. Where the file system keeps no locks, warns and goes on.
    """
    with _lock_file(folder) as file:
        if not _taken(file, shared):
            fix = "wait for it to end, or choose another folder"
            raise BertsmithError(f"another process is {doing}", folder, fix)
        yield


@contextmanager
def alone_in(folder: Path) -> Iterator[bool]:
    """Tells whether no other process holds the folder; if so, none does while the block runs."""
    with _lock_file(folder) as file:
        yield _taken(file, shared=False)


@contextmanager
def _lock_file(folder: Path) -> Iterator[IO[bytes]]:
    with files.disk_errors(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Open for reading too, without which NFS gives no shared lock.
            file = open(folder / ".lock", "a+b")  # noqa: SIM115  closed below, at which the system lets go
        except (NotADirectoryError, FileExistsError) as error:
            raise BertsmithError("a file is in the way of this folder", folder, "give another folder") from error
    with file:
        yield file


def _taken(file: IO[bytes], shared: bool) -> bool:
    try:
        _lock(file.fileno(), shared)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK):
            return False
        warn(f"{file.name}: no lock ({error.strerror}), so a second run into this folder would not be refused")
    return True


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int, shared: bool) -> None:
        if not shared:  # Windows has no shared ones
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(handle: int, shared: bool) -> None:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
