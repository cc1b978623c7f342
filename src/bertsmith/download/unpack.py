"""The files of a zip, put where they belong, checked, and never outside their folder."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted, first_of, say
from bertsmith.download.fetch import OTHER_VERSION, check_space

_LITTER = ("__MACOSX", ".DS_Store")
_BLOCK = 1 << 20


class WrongZip(BertsmithError):
    """A zip that is damaged, or another one than was wanted; its fix is for when it is deleted."""


def unpack(archive: Path, folder: Path, holds: Mapping[str, str] | None = None) -> None:
    """Unpacks a zip's files into `folder`, each whole or not at all; a single folder around all of them is dropped.

    holds: names of files that must be in it, with their SHA-256, or "" where none is known: then, as for all others,
    the CRC-32 in the zip is compared. Files that are there with the same bytes are kept. Raises WrongZip for a zip that
    is damaged or holds something else, and BertsmithError for one that would write outside the folder or over a file of
    other bytes, or that does not fit on the disk.
    """
    holds = holds or {}
    try:
        with zipfile.ZipFile(archive) as packed:
            members = [each for each in packed.infolist() if not each.is_dir()]
            _check_methods(archive, members)
            litter = [each for each in members if any(name in PurePosixPath(each.filename).parts for name in _LITTER)]
            placed = _placed(folder, archive, [each for each in members if each not in litter])
            _check_names(archive, {path.relative_to(folder).as_posix() for path in placed}, holds)
            digests = {path: holds.get(path.relative_to(folder).as_posix(), "") for path in placed}
            missing = [path for path, member in placed.items() if not _is_there(path, member.CRC, digests[path])]
            _check_way(archive, [path for path in missing if path.exists()])
            check_space(folder, sum(placed[path].file_size for path in missing), "unpacking", archive)
            for path in missing:
                with packed.open(placed[path]) as file:
                    files.write_whole(path, partial(_copy, file, digests[path], f"{archive}: {path.name}"))
    # What zipfile raises for bytes that it does not expect: of its own, of zlib, and for methods that it lacks.
    except (zipfile.BadZipFile, EOFError, zlib.error, RuntimeError, UnicodeDecodeError) as error:
        raise WrongZip(f"this zip is damaged ({error})", archive, "run the command again") from error
    checks = [f"sha256 verified of {sum(map(bool, holds.values()))}"] if any(holds.values()) else []
    left = [f"{counted(len(litter), 'file')} of the archiver's own left out"] if litter else []
    said = f"  {archive.name}: {len(missing)} of {len(placed)} files unpacked into {folder}, by their CRC-32 as packed"
    say("; ".join([said, *checks, *left]))


def _placed(folder: Path, archive: Path, members: Sequence[zipfile.ZipInfo]) -> dict[Path, zipfile.ZipInfo]:
    """The members by where they go."""
    tops = {PurePosixPath(each.filename).parts[0] for each in members if "/" in each.filename}
    around = len(tops) == 1 and all("/" in each.filename for each in members)
    placed = {_inside(folder, each.filename, archive, int(around)): each for each in members}
    if len(placed) < len(members):
        raise WrongZip("this zip has two files of one name", archive, "do not use it")
    return placed


def _inside(folder: Path, name: str, archive: Path, strip: int) -> Path:
    """Where a member goes. Raises BertsmithError for one that would lie outside the folder."""
    path = PurePosixPath(name.replace("\\", "/"))
    parts = path.parts
    if ".." in parts or path.is_absolute() or not parts[strip:]:
        raise BertsmithError(f"this zip would write outside its folder: {name}", archive, "do not use it")
    return folder.joinpath(*parts[strip:])


def _check_methods(archive: Path, members: Sequence[zipfile.ZipInfo]) -> None:
    """Other methods than the usual two are a sign of damage, and their libraries raise errors of their own; so is a
    place before the file's beginning, which is what a wrong length of the list of members gives."""
    usual = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
    other = [each.filename for each in members if each.compress_type not in usual or each.header_offset < 0]
    if other:
        what = f"this zip is damaged, or packed in an unusual way ({other[0]})"
        raise WrongZip(what, archive, "run the command again")


def _check_way(archive: Path, there: Sequence[Path]) -> None:
    if there:
        what = f"{counted(len(there), 'file')} of this zip already there with other bytes, such as {there[0]}"
        raise BertsmithError(what, archive, "move them away to have the zip's, or choose another --out")


def _check_names(archive: Path, found: set[str], holds: Mapping[str, str]) -> None:
    lacking = sorted(holds.keys() - found)
    if lacking:
        what = f"{', '.join(lacking)} should be in this zip; it holds {first_of(sorted(found)) or 'nothing'}"
        raise WrongZip(what, archive, "run the command again, or name a mirror by --url")


def _is_there(path: Path, crc: int, digest: str) -> bool:
    """Whether a file has the right bytes."""
    if not path.is_file():
        return False
    return files.sha256(path) == digest if digest else files.crc32(path) == crc


def _copy(source: IO[bytes], digest: str, name: str, target: BinaryIO) -> None:
    """Copies a member, whose CRC-32 zipfile compares at its end; raises WrongZip for another SHA-256."""
    found = hashlib.sha256()
    while block := source.read(_BLOCK):
        found.update(block)
        target.write(block)
    if digest and found.hexdigest() != digest:
        what = f"checksum mismatch: sha256 is {found.hexdigest()}, expected {digest}"
        raise WrongZip(what, name, OTHER_VERSION)
