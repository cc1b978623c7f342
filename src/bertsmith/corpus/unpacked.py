"""Large packed files that cannot be cut as they are: unpacked once into the work folder, so that all cores share them.

What is costly is not to unpack a file but what comes after; and the memory that a part takes grows with its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertsmith.base.log import say, size
from bertsmith.corpus.account import Account, Tally
from bertsmith.corpus.codecs import UNPACKED
from bertsmith.corpus.engine import Engine
from bertsmith.corpus.kinds import KINDS
from bertsmith.corpus.lines import Slice, lines_of
from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.parts import fingerprint, make_once
from bertsmith.corpus.sources import SourceFile

_NAME = "text"
# Others than dumps are unpacked from so many parts on: of files of few parts there may be many.
_MANY_PARTS = 16


@dataclass(frozen=True)
class UnpackTask:
    """One file to unpack into `folder`. made_of: fingerprint of the file's stamp and the options."""

    folder: Path
    made_of: str
    file: Slice
    strict: bool

    def __str__(self) -> str:
        return f"unpacking {self.file.name}"


def unpack(task: UnpackTask) -> dict[str, Any]:
    """Writes the file's bytes, in UTF-8, up to any damage; returns a tally of what was wrong with it.

    Raises BertsmithError for a damaged file under `strict`.
    """

    def make(folder: Path) -> dict[str, Any]:
        account = Account()
        with open(folder / _NAME, "wb") as file:
            for _, line in lines_of(task.file, None, account, task.strict, cut=False):
                file.write(line)
        return {"changed": account.changed.to_json()}

    return make_once(task.folder, task.made_of, make)


def _plain_bytes(file: SourceFile) -> int:
    return file.size_bytes * (UNPACKED if file.codec else 1)


def _parts_if_plain(file: SourceFile, part_bytes: int) -> int:
    """The parts that would be gained by unpacking a file; 0 for one that is cut as it is, or is none the wiser."""
    kind = KINDS.get(file.kind)
    if kind is None or (kind.edges is None and kind.is_start is None):
        return 0
    if file.encoding or (file.codec and file.codec not in kind.cut_packed):
        parts = 1 + _plain_bytes(file) // part_bytes
        return parts if kind.cut_packed or parts > _MANY_PARTS else 0
    return 0


def is_unpacked(file: SourceFile, part_bytes: int) -> bool:
    """Whether a file is unpacked before it is read."""
    return _parts_if_plain(file, part_bytes) > 1


def unpack_where_needed(
    found: Sequence[SourceFile], work: Path, options: PrepareOptions, engine: Engine
) -> tuple[list[SourceFile], Tally]:
    """The files, those that are unpacked first replaced by what they held; and a tally of what was wrong with these.

    Unpacked are files that could be cut if they were plain, in UTF-8: dumps that make more than one part, as their
    wikitext is read at a hundredth of the speed, and others that make many.
    """
    tasks = {}
    for number, file in enumerate(found):
        if is_unpacked(file, options.part_bytes):
            made_of = fingerprint(file.stamp, file.codec, file.encoding, options.strict)
            tasks[number] = UnpackTask(work / "unpacked" / f"{number:05d}", made_of, file.whole(), options.strict)
            say(
                f"{file.name}: {file.codec or file.encoding.upper()} cannot be read by several workers at once, so it "
                f"is unpacked into the work folder first, to about {size(_plain_bytes(file))}"
            )
    changed, files = Tally(), list(found)
    results = engine.run(unpack, list(tasks.values())) if tasks else []
    for (number, task), result in zip(tasks.items(), results, strict=True):
        changed.add(Tally.from_json(result["changed"]))
        path = task.folder / _NAME
        files[number] = replace(found[number], path=str(path), codec="", encoding="", size_bytes=path.stat().st_size)
    return files, changed
