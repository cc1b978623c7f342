"""Standard input as a file: what comes in is kept beside the work, so that it can be read twice and gone on with."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path
from typing import IO

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say, size

STANDARD_INPUT = "-"
NAME = "standard-input"
_BLOCK = 1 << 20


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
    say(f"source: standard input {why_not}, so the {held} that an interrupted run left here are gone on with")
    return found[0]


def forget(folder: Path) -> None:
    """Removes what `spool` wrote into a folder, and the folder above it where nothing else is there."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.parent.is_dir() and not any(folder.parent.iterdir()):
        folder.parent.rmdir()
