"""Large packed files that cannot be cut as they are: unpacked once into the work folder, so that all cores share them.

What is costly about a dump is not to unpack it but to read its wikitext, at a hundredth of the speed.
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


def unpack_where_needed(
    found: Sequence[SourceFile], work: Path, options: PrepareOptions, engine: Engine
) -> tuple[list[SourceFile], Tally]:
    """The files, those that are unpacked first replaced by what they held; and a tally of what was wrong with these.

    Unpacked are dumps in a packing that cannot be cut, where they make more than one part.
    """
    tasks = {}
    for number, file in enumerate(found):
        kind = KINDS.get(file.kind)
        parts = file.size_bytes * UNPACKED // options.part_bytes
        if kind is not None and kind.cut_packed and parts and file.codec and file.codec not in kind.cut_packed:
            made_of = fingerprint(file.stamp, file.codec, file.encoding, options.strict)
            tasks[number] = UnpackTask(work / "unpacked" / f"{number:05d}", made_of, file.whole(), options.strict)
            say(
                f"{file.name}: {file.codec} cannot be read by several workers at once, so it is unpacked into the work "
                f"folder first, to about {size(file.size_bytes * UNPACKED)}"
            )
    changed, files = Tally(), list(found)
    results = engine.run(unpack, list(tasks.values())) if tasks else []
    for (number, task), result in zip(tasks.items(), results, strict=True):
        changed.add(Tally.from_json(result["changed"]))
        path = task.folder / _NAME
        files[number] = replace(found[number], path=str(path), codec="", encoding="", size_bytes=path.stat().st_size)
    return files, changed
