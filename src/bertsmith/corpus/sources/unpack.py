"""Large files that cannot be cut as they are, written once into the work folder in a form that can, so that all cores
share them: compressed files decompressed, parquet files with large row groups in smaller ones.

Decompressing costs little beside what follows; and the memory that a part takes grows with its bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertsmith.base.log import say, size
from bertsmith.base.tally import Tally
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import ReadOptions
from bertsmith.corpus.engines.local import Engine
from bertsmith.corpus.engines.parts import Part, fingerprint, makes_part, part_folder
from bertsmith.corpus.reading import Reading
from bertsmith.corpus.sources.find import SourceFile
from bertsmith.corpus.sources.formats import KINDS
from bertsmith.corpus.sources.row_documents import regroup
from bertsmith.rows.compressed import UNPACKED
from bertsmith.rows.lines import Slice
from bertsmith.rows.parquet import text_bytes

_NAME = "text"
# Files other than dumps are decompressed first if they have at least this many parts: there may be many small ones.
_MANY_PARTS = 16


@dataclass(frozen=True)
class UnpackTask(Part):
    """One file to unpack into `folder`. made_of: fingerprint of the file's stamp and the options. part_bytes: of the
    row groups of a parquet file."""

    file: Slice
    options: ReadOptions
    part_bytes: int

    def __str__(self) -> str:
        return f"unpacking {self.file.name}"


@makes_part
def unpack(task: UnpackTask, folder: Path) -> dict[str, Any]:
    """Writes the file's bytes, in UTF-8, up to any damage, or its row groups; returns a tally of what was wrong.

    Raises BertsmithError for a damaged file under `strict`.
    """
    reading = Reading(task.file, task.options, Account())
    if task.file.kind == "parquet":
        regroup(reading, folder / _NAME, task.part_bytes)
    else:
        with open(folder / _NAME, "wb") as file:
            file.writelines(line for _, line in reading.lines(None, cut=False))
    return {"changed": reading.account.changed.to_json()}


def plain_bytes(file: SourceFile, text_field: str) -> int:
    """About how many bytes a file holds when it is unpacked; of parquet, of text."""
    if file.kind == "parquet":
        return sum(text_bytes(file.path, text_field))
    return file.size_bytes * (UNPACKED if file.codec else 1)


def is_unpacked(file: SourceFile, options: ReadOptions, part_bytes: int) -> bool:
    """Whether a file is unpacked before it is read: one that is not cut as it is, and would make enough parts."""
    kind = KINDS[file.kind]
    if file.kind == "parquet":
        return max(text_bytes(file.path, options.text_field), default=0) > _MANY_PARTS * part_bytes
    is_cut = not file.encoding and (not file.codec or file.codec in kind.cut_packed)
    if is_cut or (kind.edges is None and kind.is_start is None):
        return False
    return 1 + plain_bytes(file, options.text_field) // part_bytes > (1 if kind.cut_packed else _MANY_PARTS)


def _said(file: SourceFile, options: ReadOptions) -> str:
    """Why a file is unpacked, and to how much."""
    if file.kind == "parquet":
        held = text_bytes(file.path, options.text_field)
        return (
            f"{file.name}: a row group holds {size(max(held))} of text, too much for one worker, so all "
            f"{size(sum(held))} are written into the work folder first, in smaller ones"
        )
    return (
        f"{file.name}: {file.codec or file.encoding.upper()} cannot be read by several workers at once, so it "
        f"is decompressed into the work folder first, to about {size(plain_bytes(file, options.text_field))}"
    )


def unpack_where_needed(
    found: Sequence[SourceFile], work: Path, options: ReadOptions, part_bytes: int, engine: Engine
) -> tuple[list[SourceFile], Tally]:
    """The files, those that are unpacked first replaced by what they held; and a tally of what was wrong with these.

    Unpacked are files that could be cut if they were plain, in UTF-8: dumps that make more than one part, as their
    wikitext is read at a hundredth of the speed, and others that make many. Of a parquet file, the largest row group is
    what counts.
    """
    tasks = {}
    for number, file in enumerate(found):
        if is_unpacked(file, options, part_bytes):
            rows = [options.text_field, part_bytes] if file.kind == "parquet" else []
            made_of = fingerprint(file.stamp, file.codec, file.encoding, options.strict, *rows)
            folder = part_folder(work / "unpacked", number)
            tasks[number] = UnpackTask(folder, made_of, file.whole(), options, part_bytes)
            say(_said(file, options))
    changed, files = Tally(), list(found)
    results = engine.run(unpack, list(tasks.values())) if tasks else []
    for (number, task), result in zip(tasks.items(), results, strict=True):
        changed.add(Tally.from_json(result["changed"]))
        path = task.folder / _NAME
        files[number] = replace(found[number], path=str(path), codec="", encoding="", size_bytes=path.stat().st_size)
    return files, changed
