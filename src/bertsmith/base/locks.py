"""A folder that one process holds, or several that share it, while they live: a lock that the system itself releases.

The lock is on the file `.lock` in the folder, which stays when it is released: `flock` on POSIX systems, a locked byte
on Windows. A process that is killed releases it. On a shared file system it holds as far as `flock` does there: NFS
and Lustre pass it on to other machines unless they are mounted with local locks. Children that a process forks hold its
lock too, until the last of them ends.
"""

from __future__ import annotations

import errno
import os
import platform
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import warn

LOCK_FILE = ".lock"
_REFUSED = (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)


class Held:
    """A folder that this process holds, until the stack ends that it is given."""

    def __init__(self, folder: Path, shared: bool, doing: str, ends: ExitStack) -> None:
        """As `locked`, and raises as that."""
        self._path, self._ends = folder / LOCK_FILE, ends
        self._taken = partial(_held, folder, shared, doing)
        self._file = ends.enter_context(self._taken())

    def is_lost(self) -> bool:
        """Whether the folder or its lock was moved or removed since, so that others may hold what is there now."""
        return not files.is_at(self._file, self._path)

    def take_again(self) -> None:
        """Holds what is there now. Raises BertsmithError where others do."""
        self._file = self._ends.enter_context(self._taken())


@contextmanager
def locked(folder: Path, shared: bool = False, doing: str = "preparing a corpus here") -> Iterator[Held]:
    """Holds a folder, which it makes if it is not there, for this process; shared: together with others that share it.

    doing: what the holders of such a folder do, for the message that a second process gets. Raises BertsmithError when
    others hold the folder, naming process and host if they are known. Where the file system has no locks, warns and
    continues.
    """
    with ExitStack() as ends:
        yield Held(folder, shared, doing, ends)


@contextmanager
def _held(folder: Path, shared: bool, doing: str) -> Iterator[IO[bytes]]:
    with _lock_file(folder) as file:
        if not _taken(file, shared):
            fix = "wait for it to end, or choose another folder"
            raise BertsmithError(f"another process is {doing}{_holder(file)}", folder, fix)
        # Those that share it write nothing, but clear what a killed process left, which would name the wrong holder.
        _write(file, "" if shared else f"process {os.getpid()} on {platform.node() or 'an unnamed host'}")
        try:
            yield file
        finally:
            if not shared:
                _write(file, "")


@contextmanager
def alone_in(folder: Path) -> Iterator[bool]:
    """Yields whether no other process holds the folder; if so, none can while the block runs."""
    with _lock_file(folder) as file:
        yield _taken(file, shared=False)


def _lock_file(folder: Path) -> IO[bytes]:
    files.make_folder(folder)
    return files.open_to_append(folder / LOCK_FILE)  # for reading too, without which NFS gives no shared lock


def _taken(file: IO[bytes], shared: bool) -> bool:
    try:
        _lock(file.fileno(), shared)
    except OSError as error:
        if error.errno in _REFUSED:
            return False
        warn(f"{file.name}: no lock ({error.strerror}), so a second run into this folder would not be refused")
    return True


def _write(file: IO[bytes], holder: str) -> None:
    with suppress(OSError):  # a full disk: the lock holds without a name
        file.truncate(0)
        file.write(holder.encode())


def _holder(file: IO[bytes]) -> str:
    """Who holds the lock, as the holder wrote it; "" where several share it, or it was taken this very moment."""
    file.seek(0)
    written = file.read(500).decode(errors="replace").strip()
    return f" ({written})" if written else ""


if sys.platform == "win32":
    import msvcrt

    # Nobody can read a locked byte, so it is one after the name of the holder.
    _LOCKED_BYTE = 1 << 20

    def _lock(handle: int, shared: bool) -> None:
        if not shared:  # Windows has no shared ones
            os.lseek(handle, _LOCKED_BYTE, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
else:
    import fcntl

    def _lock(handle: int, shared: bool) -> None:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
