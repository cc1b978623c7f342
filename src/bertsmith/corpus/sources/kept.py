"""Sources that are no files, kept as files beside the work: standard input, and the documentation of Python.

So they can be read twice, and an interrupted preparation can be resumed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say, size
from bertsmith.base.tally import Tally
from bertsmith.corpus.sources import python_docs

STANDARD_INPUT = "-"
PYTHON_DOCS = "python-docs"
# What standard input is called in ids and messages, and the folder that it is kept in.
NAME = "standard-input"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Kept:
    """The file that a source was written to. name: what ids and messages call it. stamp: a hash of its content."""

    path: Path
    name: str
    stamp: str


def keep(
    sources: Sequence[str | Path], folder: Path, text_field: str, stream: IO[bytes] | None = None
) -> tuple[dict[str, Kept], Tally]:
    """Writes those of the sources that are no files into `folder`; and a tally of what was left out of them.

    stream: standard input, where it may be a source. A file or folder that is called python-docs comes before the
    documentation. Raises BertsmithError as `spool` does.
    """
    kept, left_out = dict[str, Kept](), Tally()
    named = {str(source) for source in sources}
    if STANDARD_INPUT in named and stream is not None:
        path = spool(folder / NAME, stream)
        kept[STANDARD_INPUT] = Kept(path, NAME, path.name)
    if PYTHON_DOCS in named and not Path(PYTHON_DOCS).exists():
        collection = python_docs.collect()
        content = collection.as_json_lines(text_field)
        stamp = hashlib.sha256(content.encode()).hexdigest()
        path = folder / PYTHON_DOCS / f"{stamp}.jsonl"
        files.write_text(path, content)
        kept[PYTHON_DOCS] = Kept(path, PYTHON_DOCS, stamp)
        left_out.add(collection.counts)
    return kept, left_out


def forget(kept: Mapping[str, Kept]) -> None:
    """Removes what `keep` wrote, and the folder that it was given where nothing else is there."""
    for each in kept.values():
        shutil.rmtree(each.path.parent, ignore_errors=True)
        folder = each.path.parent.parent
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def spool(folder: Path, stream: IO[bytes]) -> Path:
    """Writes all of a stream to a file of `folder`, and returns it: its name is the SHA-256 of what it holds.

    Where nothing comes, or a terminal would have to be typed into, the file that an earlier run left there is taken; so
    a preparation that was interrupted can go on without its input. Raises BertsmithError where there is none.
    """
    earlier = [path for path in folder.glob("*") if not path.name.startswith(".")]
    if stream.isatty():
        return _earlier(earlier, "is a terminal")
    aside, digest, count = folder / f".{NAME}.part", hashlib.sha256(), 0
    with files.disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with open(aside, "wb") as file:
                while block := stream.read(_BLOCK):
                    digest.update(block)
                    count += file.write(block)
                file.flush()
                os.fsync(file.fileno())
            if not count:
                return _earlier(earlier, "is empty")
            spooled = folder / digest.hexdigest()
            aside.replace(spooled)
        finally:
            aside.unlink(missing_ok=True)
    for path in earlier:
        if path != spooled:
            path.unlink()
    say(f"source: standard input, {size(count)}, kept in {spooled.parent} until the corpus is finished")
    return spooled


def _earlier(found: list[Path], why_not: str) -> Path:
    if len(found) != 1:
        fix = "pipe text into the command, or name files"
        raise BertsmithError(f"standard input {why_not}", STANDARD_INPUT, fix)
    held = size(found[0].stat().st_size)
    say(f"source: standard input {why_not}; resuming with the {held} that an interrupted run left here")
    return found[0]
