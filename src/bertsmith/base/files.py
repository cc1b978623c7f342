"""Files that are written whole or not at all, and one message for a disk that cannot be written to."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.log import warn

_DISK_FIXES = {
    errno.ENOSPC: "free some space or choose another folder, then run the command again; what was finished is intact",
    errno.EDQUOT: "your quota is used up; free some space or choose another folder, then run the command again",
    errno.EROFS: "choose a folder on a disk that can be written to",
    errno.EACCES: "choose a folder that you may write to, or fix its permissions",
    errno.EPERM: "choose a folder that you may write to",
    errno.ENAMETOOLONG: "choose a shorter name: what is unfinished needs some 40 bytes more than it",
    errno.EIO: "see to the disk: it fails to write; what was finished is intact",
    errno.ESTALE: "see to the shared disk: it was mounted anew or its folder was replaced; then run the command again",
    errno.EISDIR: "a folder is in the way of this file: move it away, then run the command again",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f), or choose another disk",
}
# Where a file in place of an entry would cut the machine's own programs off from a device, or a shell from its output.
_DEVICES = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
StrPath = str | os.PathLike[str]
"""What names a file or a folder."""

# NFS keeps what it knows of a folder for up to a minute.
_OLD_VIEW_SECONDS, _LOOK_SECONDS = 90.0, 0.25
# The name that `whole_folder` gives the folder that it replaces, until it is done.
_OLD_FOLDER = re.compile(r"\.(?P<name>.+)\.\d+(-[0-9a-f]{12})?\.old")


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns a full, read-only or forbidden disk into a BertsmithError that names `path`."""
    try:
        yield
    except OSError as error:
        if error.errno not in _DISK_FIXES:
            raise
        what = f"could not write: {os.strerror(error.errno or 0)}"
        raise BertsmithError(what, path, _DISK_FIXES[error.errno]) from error


@contextmanager
def read_errors(path: str | Path) -> Iterator[None]:
    """Turns an error of reading `path` into a BertsmithError that names it, except for a missing file."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise BertsmithError(f"this file cannot be read ({reason})", path, "name a file that you may read") from error


def as_path(value: StrPath, name: str) -> Path:
    """What the argument `name` names. Raises BertsmithError for what is no path, for an empty text, which would be the
    present folder, and for a name that no file can have, as a text in place of its file's name is often too long."""
    if value == "":
        raise BertsmithError(f"{name} is empty", name, "name a file or a folder; the present folder is .")
    try:
        path = Path(value)
        path.lstat()
    except TypeError as error:
        what = f"{name} is of type {type(value).__name__}, which is no path"
        raise BertsmithError(what, name, "give a path, as a text or a Path") from error
    except (OSError, ValueError) as error:  # mostly of a path where nothing is yet
        if "\0" in str(path) or getattr(error, "errno", None) == errno.ENAMETOOLONG:
            what = f"this cannot be read or written ({getattr(error, 'strerror', 'it holds a zero byte')})"
            raise BertsmithError(what, f"{path!s:.80}", f"{name} is a path: give another or a shorter name") from error
    return path


def nothing_at(path: Path, what: str) -> BertsmithError:
    """The error for a path where nothing is, which `what` says: with the name beside it that is most like it."""
    if path.is_symlink():
        return BertsmithError("this link leads to nothing", path, "name what it is to lead to, or fix the link")
    beside = [child.name for child in path.parent.iterdir()] if path.parent.is_dir() else []
    shown = [name for name in beside if not name.startswith(".")]
    return BertsmithError(what, path, nearest(path.name, shown) if 0 < len(shown) < 50 else "check the path")


def data_folder() -> Path:
    """The folder of public data: BERTSMITH_DATA, else one in the user's cache."""
    return Path(os.environ.get("BERTSMITH_DATA") or Path.home() / ".cache" / "bertsmith-data")


def make_folder(folder: Path, where: Path | None = None) -> None:
    """Makes a folder, and those that it lies in, where they are not there. Raises BertsmithError where that cannot be
    done, which names `where` if given."""
    where = where or folder
    with disk_errors(where):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (NotADirectoryError, FileExistsError) as error:
            raise BertsmithError("a file is in the way of this folder", where, "give another folder") from error
        except FileNotFoundError as error:  # as in /proc, where the system alone makes folders
            raise BertsmithError("no folder can be made here", where, "choose a folder on a disk") from error


def check_name(path: Path) -> None:
    """Raises BertsmithError for a name that is too long for the disk, or becomes so by what stands beside it; and for a
    device or a pipe, whose place no file may take."""
    with disk_errors(path), suppress(FileNotFoundError, NotADirectoryError):
        os.lstat(_beside(_named(path), "part"))


def check_utf8(path: Path) -> None:
    """Raises BertsmithError for a name that is not UTF-8, which libraries that read weights and graphs do not take."""
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        what = "this name is not UTF-8, and the libraries that read models take no such name"
        raise BertsmithError(what, path, "rename the folder, or choose another one") from error


def check_file(path: Path) -> None:
    """Raises BertsmithError where this file cannot be written, as far as that shows before any work."""
    if os.path.isdir(path):  # which is False for a name that is too long
        raise BertsmithError("this is a folder, and a file is to be written here", path, "give the name of a file")
    check_place(path)


def check_not_read(path: StrPath, read: Iterable[StrPath]) -> None:
    """Raises BertsmithError where a file that is to be written is one of those to be read."""
    if os.path.isfile(path) and any(os.path.isfile(each) and os.path.samefile(path, each) for each in read):
        raise BertsmithError("this file is read here, and would be written over", os.fspath(path), "give another name")


def check_place(path: Path) -> None:
    """Raises BertsmithError where no file or folder of this name can be made, as far as that shows before any work."""
    check_name(path)
    named = _named(path).absolute()
    folder = named if named.is_dir() else next(each for each in named.parents if each.exists())
    if not folder.is_dir():
        raise BertsmithError("a file is in the way of this folder", folder, "give another folder")
    aside = folder / _beside(named, "part").name
    with disk_errors(path):
        _opened(aside, path).close()
        aside.unlink()


def _named(path: Path) -> Path:
    """With a name to put another one beside, which "." has not. Raises BertsmithError for what is no place of a file or
    a folder."""
    if path.name in ("", ".."):
        path = path.resolve()
    if not path.name:
        raise BertsmithError("nothing can be made in place of the root of a disk", path, "give a name below it")
    if not path.is_dir() and (path.absolute().parent in _DEVICES or (path.exists() and not path.is_file())):
        what = "this is a device or a pipe, or a place for these, and no file is made here"
        raise BertsmithError(what, path, "give the name of a file or a folder")
    return path


def _opened(aside: Path, path: Path) -> BinaryIO:
    """What stands beside `path` until it is whole, open."""
    try:
        return open(aside, "wb")
    except FileNotFoundError as error:  # as in /proc, where the system alone makes files
        raise BertsmithError("no file can be made here", path, "choose a folder on a disk") from error


def write_whole(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Calls `write` on a file beside `path`, syncs it and renames it into place: readers see the old or the new file. A
    link is replaced, and the file that it led to stays as it is.

    Raises BertsmithError when the disk is full or read-only; the old file, if any, is then untouched.
    """
    with disk_errors(path):
        aside = _beside(_named(path), "part")
        make_folder(path.parent)
        try:
            with _opened(aside, path) as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes UTF-8 text whole or not at all. A lone surrogate, by which Python stands for a byte of a file's name that
    is not UTF-8, is written as its escape (\\udce9), which JSON reads back."""
    write_whole(path, lambda file: file.write(text.encode(errors="backslashreplace")))


def as_json(value: Any, **form: Any) -> str:
    """A value as `json.dumps` writes it, but for NaN and infinities, which JSON does not have: null stands for them."""
    try:
        return json.dumps(value, allow_nan=False, **form)
    except ValueError:
        return json.dumps(_finite(value), **form)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def with_nan(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Figures that were read, with NaN for null, as which `as_json` writes what is not finite."""
    return {name: math.nan if value is None else value for name, value in figures.items()}


def write_json(path: Path, value: Any) -> None:
    """Writes JSON whole or not at all, indented for people, keys in the given order: see `as_json`."""
    write_text(path, as_json(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path, fix: str = "") -> Any:
    """Reads JSON. Raises BertsmithError when the file is missing, not readable, or not valid JSON; and for a pipe among
    files, which nothing may ever write to."""
    try:
        with read_errors(path):
            if path.is_fifo() and path.absolute().parent not in _DEVICES:
                raise BertsmithError("this is a pipe, not a file", path, fix)
            return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise BertsmithError("this file is missing", path, fix) from error
    except (ValueError, RecursionError) as error:
        invalid = isinstance(error, json.JSONDecodeError | UnicodeDecodeError)
        reason = str(error) if invalid else "it is nested too deeply, or a number has too many digits"
        raise BertsmithError(f"this file is not JSON that can be read ({reason})", path, fix) from error


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yields a folder to write into, which replaces `path`, of a link the link alone, at the end; on an error `path`
    stays as it was.

    Replacing a folder takes two renames, so a kill between them leaves the old one under a hidden name: the next call
    for the same path, or `put_back`, restores it. If the folder is the process's working directory, the new one is
    afterwards. Raises BertsmithError when the disk is full or read-only.
    """
    path = _named(path)
    works_there = path.exists() and path.samefile(".")
    aside = _beside(path, "part")
    with disk_errors(path):
        put_back(path.parent, path.name)
        make_folder(aside, path)
        try:
            yield aside
            for file in aside.rglob("*"):
                sync(file)
            sync(aside)
            _replace_folder(aside, path)
        finally:
            clear(aside)
    if works_there:
        os.chdir(path)
        warn(f"the folder you are in, {path}, was replaced by the finished one: run `cd .` to see it")


def _replace_folder(new: Path, path: Path) -> None:
    """Moves `new` to `path`, and what was there to `new`; on an error both are where they were."""
    old = _beside(path, "old")
    try:
        if os.path.lexists(path):
            os.replace(path, old)
        os.replace(new, path)
        sync(path.parent)
        if os.path.lexists(old):  # renamed before it is removed, so a folder with the hidden name is always whole
            os.replace(old, new)
    except BaseException:
        if not new.exists():
            os.replace(path, new)
        if os.path.lexists(old):
            os.replace(old, path)
        raise


def clear(path: Path) -> None:
    """Removes a file, or a folder, as far as the disk lets it; of a link, the link alone. Warns of what stays."""
    shutil.rmtree(path, ignore_errors=True)
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)  # once more, for the reason why it stays
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        if os.path.lexists(path):
            why = error.strerror or str(error)
            warn(f"{path} could not be removed ({why}): remove it by hand, else it keeps taking up space")


def _beside(path: Path, kind: str) -> Path:
    """A hidden name beside `path` that no other process has: containers on one disk may have equal process numbers."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(6)}.{kind}")


def remove_folder(path: Path) -> None:
    """Removes a folder under a hidden name, so that none with its own name is ever half removed; of a link, the link
    alone. Warns where the disk refuses."""
    aside = _beside(path, "part")
    try:
        os.replace(path, aside)
    except OSError as error:
        warn(f"{path} could not be removed: {error.strerror}")
    else:
        clear(aside)


def put_back(parent: Path, name: str | None = None) -> None:
    """Finishes what a killed `whole_folder` left undone in `parent`, for the folder `name` or for all of them.

    An old folder is moved back, with a warning, if nothing is in its place; otherwise it was replaced and is removed.
    """
    for old in sorted(parent.glob(".*.old")):
        if not (match := _OLD_FOLDER.fullmatch(old.name)) or name not in (None, match["name"]):
            continue
        path = parent / match["name"]
        if path.exists():
            clear(old)
        else:
            os.replace(old, path)
            warn(f"{path} was restored: a command was killed while it replaced it")


def open_to_append(path: Path) -> BinaryIO:
    """A file to append to and to read, unbuffered. Raises BertsmithError where it cannot be opened."""
    with disk_errors(path):
        try:
            return cast(BinaryIO, open(path, "a+b", buffering=0))
        except FileNotFoundError as error:
            raise BertsmithError("this is a link to a place that is not there", path, "remove the link") from error


def is_at(file: IO[bytes], path: Path) -> bool:
    """Whether an open file is the one at `path`, which may have been removed, renamed or replaced since, and so
    may the folder that it lay in."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):  # on NFS, by another host
            return False
        raise


def wait_for(path: Path, seconds: float = _OLD_VIEW_SECONDS) -> bool:
    """Waits until what another host has written is seen on this one; whether it is, after at most so many seconds."""
    end = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > end:
            return False
        with suppress(OSError):  # opening a folder asks a file server anew
            os.scandir(path.parent).close()
        time.sleep(_LOOK_SECONDS)
    return True


def sync(path: Path) -> None:
    """Makes the system write a file, or the entries of a folder, to the disk; Windows has no such call for a folder."""
    if sys.platform == "win32" and path.is_dir():
        return
    # Windows refuses it for a file that is open for reading only.
    handle = os.open(path, os.O_RDWR if sys.platform == "win32" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    return checksum(path, "sha256")


def crc32(path: Path) -> int:
    """The CRC-32 of a file, as zips have it."""
    check = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            check = zlib.crc32(block, check)
    return check


def checksum(path: Path, algorithm: str) -> str:
    """A file's checksum by an algorithm that hashlib knows, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
