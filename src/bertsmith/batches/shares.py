"""Which of the ranks that see one folder makes which part of what is kept there.

Ranks on one disk split the work. Where the disk is not one, as with a copy of the corpus on every host, each group of
ranks that see the same folder does all of it.
"""

from __future__ import annotations

import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import warn

T = TypeVar("T")
# Nothing is being written or looked for so long.
_LEFT_SECONDS = 3600.0
_LEFTOVERS = (".epoch-*.part", "epoch-*/.*.part", ".seen-*", "..seen-*.part")
Gathered = Callable[[Any], list[Any]]
"""Gives a value of every rank to every rank, in the order of the ranks; called by all of them together."""


@dataclass(frozen=True)
class Share:
    """A rank's part. folder: None where nothing can be kept. place: among the `places` ranks that write there, from 0;
    None for a rank that only reads. temporary: whether this rank made the folder for this run alone."""

    folder: Path | None
    place: int | None = 0
    places: int = 1
    temporary: bool = False

    @property
    def leads(self) -> bool:
        """Whether this rank makes what is made of all parts."""
        return self.place == 0

    def of(self, parts: Sequence[T]) -> Sequence[T]:
        """The parts that this rank makes; all ranks that write there together make every part once."""
        return [] if self.place is None else parts[self.place :: self.places]

    def close(self) -> None:
        """Removes a temporary folder."""
        if self.temporary and self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True)
class _Mark:
    """An empty file of a rank by which others see that its folder is theirs. kept: whether it is in the folder that was
    asked for, and not in a temporary one."""

    folder: str
    name: str
    kept: bool

    def is_seen(self, folder: Path) -> bool:
        """Whether this process sees it. folder: the one that was asked for, as this process calls it."""
        with suppress(OSError):
            return self.path(folder).exists()
        return False

    def path(self, folder: Path) -> Path:
        """Where it is."""
        return (folder if self.kept else Path(self.folder)) / self.name


def agree(folder: Path, gathered: Gathered) -> Share:
    """This rank's share of what is to be kept in `folder`; every rank calls it at the same time.

    Where none of the ranks of a host can write to the folder, they share a temporary one, until the one that made it
    closes its share; a warning says so.
    """
    mark = _marked(folder)
    marks: dict[int, _Mark] = {rank: each for rank, each in enumerate(gathered(mark)) if each is not None}
    seen = (rank for rank, each in marks.items() if each.is_seen(folder))
    leader = min(seen, key=lambda rank: not marks[rank].kept, default=None)
    writes = mark is not None and leader is not None and (mark.kept or not marks[leader].kept)
    choices: list[tuple[int | None, bool]] = gathered((leader, writes))
    if mark is not None:  # all have looked for it
        with suppress(OSError):
            mark.path(folder).unlink()
    if leader is None:
        what = (
            f"the order of instances cannot be kept in {folder}: every process builds it anew, and holds it in memory"
        )
        warn(what, of_all_ranks=True)
        return Share(None)
    chosen = marks[leader]
    writers = [number for number, choice in enumerate(choices) if choice == (leader, True)]
    own = next(rank for rank, each in marks.items() if each == mark) if writes else None
    temporary = own == leader and not chosen.kept
    if temporary:
        warn(f"{folder} cannot be written to, so the order of instances is kept in {chosen.folder} until this run ends")
    elif mark is not None and not mark.kept:
        shutil.rmtree(mark.folder, ignore_errors=True)
    place = None if own is None else writers.index(own)
    if place == 0:
        _clear_leftovers(chosen.path(folder).parent)
    return Share(chosen.path(folder).parent, place, len(writers), temporary)


def _clear_leftovers(folder: Path) -> None:
    """Removes what killed runs have left half written, and their marks."""
    for pattern in _LEFTOVERS:
        for path in folder.glob(pattern):
            with suppress(OSError):  # another run may clear them too
                if time.time() - path.stat().st_mtime > _LEFT_SECONDS:
                    path.unlink()


def _marked(folder: Path) -> _Mark | None:
    """A mark in the folder, else in a temporary one; None where neither can be written to."""
    name = f".seen-{secrets.token_hex(8)}"
    with suppress(OSError, BertsmithError):
        files.write_text(folder / name, "")
        return _Mark(str(folder), name, kept=True)
    with suppress(OSError, BertsmithError):
        temporary = Path(tempfile.mkdtemp(prefix="bertsmith-order-"))
        files.write_text(temporary / name, "")
        return _Mark(str(temporary), name, kept=False)
    return None
