"""A file that a run appends to for hours, whatever the disk and other programs do to it meanwhile."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from bertsmith.base.files import disk_errors, is_at, open_to_append, write_whole
from bertsmith.base.log import say, warn
from bertsmith.training.objective import nothing


class AppendedFile:
    """A file that is appended to, and that may be written and synced from several threads.

    What the disk refuses, because it is full say, is warned about, kept in memory and written with what comes next. A
    file that another program has removed, renamed or replaced is made anew at the next sync, with all that it held.
    """

    def __init__(self, path: Path, check: Callable[[], None] = nothing) -> None:
        """check: called before the file is made anew; raises BertsmithError where it must not be. Raises BertsmithError
        where the file cannot be opened."""
        self._path, self._check, self._waiting, self._refused = path, check, b"", False
        self._lock = threading.Lock()
        self._file = open_to_append(path)
        self._size = os.fstat(self._file.fileno()).st_size

    def write(self, data: bytes) -> None:
        """Appends data, at once if the disk lets it."""
        with self._lock:
            self._waiting += data
            try:
                self._put()
            except OSError as error:
                if not self._refused:
                    reason = error.strerror or str(error)
                    warn(f"could not write to {self._path}: {reason}; what comes is kept in memory, and tried again")
                self._refused = True
                return
            if self._refused:
                say(f"what {self._path} lacked is written now")
            self._refused = False

    def flush(self) -> None:
        """Does nothing, as `write` waits for nothing; for those who write to any file."""

    def sync(self) -> None:
        """Puts all that was appended on the disk, at its place. Raises BertsmithError where that is refused."""
        with disk_errors(self._path):
            if not is_at(self._file, self._path):
                self._check()
                self._restore()
            self.write(b"")
            with self._lock:
                self._put()
                self._warn_of_others()
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Puts everything on the disk, and closes the file. Raises as `sync`."""
        try:
            self.sync()
        finally:
            self._file.close()

    def _restore(self) -> None:
        """Makes the file anew, and keeps what is in its place by another name; a kill at any moment loses neither."""
        others: list[Path] = []

        def write(file: BinaryIO) -> None:
            self._file.seek(0)
            shutil.copyfileobj(self._file, file)
            others.extend(_kept_aside(self._path))  # the last thing, so that a full disk leaves no more of them

        with self._lock:
            write_whole(self._path, write)
            self._file.close()
            self._file = open_to_append(self._path)
        done = "replaced" if others else "removed or renamed"
        kept = f", and the file that took its place is kept as {others[0].name}" if others else ""
        warn(f"{self._path} was {done} while the run writes it; it is there again, with all that it held{kept}")

    def _warn_of_others(self) -> None:
        size = os.fstat(self._file.fileno()).st_size
        if size != self._size:
            warn(
                f"another program has written to {self._path}, where {self._size:,} bytes were and {size:,} are: lines "
                "may be lost"
            )
            self._size = size

    def _put(self) -> None:
        while self._waiting:
            written = self._file.write(self._waiting)
            self._waiting, self._size = self._waiting[written:], self._size + written


def _kept_aside(path: Path) -> list[Path]:
    """A copy of a file, under a name of its own; none where there is no file."""
    if not path.is_file():
        return []
    names = (path.with_name(f"{path.name}.other-{number}") for number in itertools.count(1))
    aside = next(each for each in names if not os.path.lexists(each))
    with path.open("rb") as other:
        write_whole(aside, lambda file: shutil.copyfileobj(other, file))
    return [aside]
