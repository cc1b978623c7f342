"""What can be downloaded, read from `downloads.yaml` beside this file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files as package_files

import yaml

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.log import size
from bertsmith.base.tables import aligned


@dataclass(frozen=True)
class CatalogueFile:
    """A file of an entry. path: behind the entry's base, with names in braces. bytes, sha256: as recorded, else None
    and "". unpack: a zip, whose files go into the entry's folder. name: on the disk; "" for the end of the path. holds:
    the SHA-256 of the files that must be in the zip, "" where none is known."""

    path: str
    bytes: int | None = None
    sha256: str = ""
    unpack: bool = False
    name: str = ""
    holds: Mapping[str, str] = field(default_factory=dict)

    @property
    def checked_by(self) -> str:
        """What tells whether the bytes are right."""
        if self.sha256 or (self.holds and all(self.holds.values())):
            return "sha256"
        return "crc32 in the zip" if self.unpack else "unverified"


@dataclass(frozen=True)
class Entry:
    """Something to download. folder: below --out, with names in braces. sums: the path of upstream's own list of SHA-1
    sums. mrpc: to be cut into GLUE's train and dev. then: a command that reads it. all_of: the entries that this one
    stands for. unavailable, instead: why it cannot be downloaded, and what to use."""

    name: str
    what: str
    licence: str = ""
    base: str = ""
    folder: str = ""
    sums: str = ""
    files: tuple[CatalogueFile, ...] = ()
    mrpc: bool = False
    note: str = ""
    then: str = ""
    all_of: tuple[str, ...] = ()
    unavailable: str = ""
    instead: str = ""

    @property
    def parts(self) -> list[Entry]:
        """The entries that it stands for, or itself."""
        return [catalogue()[each] for each in self.all_of] or [self]

    @property
    def by_book(self) -> bool:
        """Whether its files are books, requested by number."""
        return any("{book}" in file.path for file in self.files)

    @property
    def by_shape(self) -> bool:
        """Whether it is one of many models, requested by layers and width."""
        return "{layers}" in self.folder


@cache
def catalogue() -> dict[str, Entry]:
    """Every entry by its name, in the order of the file."""
    text = package_files("bertsmith.download").joinpath("downloads.yaml").read_text(encoding="utf-8")
    entries = {}
    for name, values in yaml.safe_load(text).items():
        listed = tuple(CatalogueFile(**each) for each in values.pop("files", ()))
        entries[name] = Entry(name, files=listed, all_of=tuple(values.pop("all_of", ())), **values)
    return entries


def entries_of(name: str) -> list[Entry]:
    """The entry of this name, or all that it stands for. Raises BertsmithError for a name that is not known and for
    what is unavailable."""
    if name not in catalogue():
        fix = f"{nearest(name, catalogue())}; `bertsmith download` lists all"
        raise BertsmithError(f"there is no download '{name}'", "download", fix)
    entry = catalogue()[name]
    if entry.unavailable:
        raise BertsmithError(f"{name} cannot be downloaded: {entry.unavailable}", "download", entry.instead)
    return entry.parts


def total_bytes(entry: Entry) -> int | None:
    """The bytes of all files, or None where some are not known."""
    counts = [each.bytes for part in entry.parts for each in part.files]
    return sum(count for count in counts if count is not None) if counts and None not in counts else None


def checked_by(entry: Entry) -> str:
    """What tells whether the bytes are right."""
    if all(part.sums for part in entry.parts):
        return "sha1 of upstream"
    checks = {each.checked_by for part in entry.parts for each in part.files}
    return checks.pop() if len(checks) == 1 else "unverified"


def listing() -> str:
    """All entries as a table for people."""
    rows = [("name", "size", "checked by", "what it is [licence]")]
    for entry in catalogue().values():
        total = total_bytes(entry)
        varies = entry.sums or entry.by_book or entry.by_shape
        said = size(total) if total is not None else "varies" if varies else "unknown"
        checks = checked_by(entry)
        if entry.unavailable:
            said, checks = "-", "unavailable"
        licence = entry.licence or "see its parts"
        rows.append((entry.name, said, checks, f"{entry.what} [{licence}]"))
    return "\n".join(aligned(rows, "lrl"))
