"""From what the user names (files, folders, globs, "python-docs") to the files to read, recognised by their content."""

from __future__ import annotations

import glob
import json
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.log import say, size
from bertsmith.corpus import pydocs
from bertsmith.corpus.account import Tally
from bertsmith.corpus.documents import ReadOptions
from bertsmith.corpus.kinds import KINDS, WIKI_FIELDS
from bertsmith.corpus.lines import codec_of, peek

PYTHON_DOCS = "python-docs"
_HEAD = 1 << 16
_LONGEST_FIRST_ROW = 1 << 24
_TABLES = (".csv", ".tsv", ".parquet")
_READ = "read are text, JSON lines and WikiExtractor output, each plain or packed as gz, bz2 or xz"


@dataclass(frozen=True)
class SourceFile:
    """A file to read. stamp: changes when the file's content does (its size and time of change)."""

    path: str
    name: str
    kind: str
    codec: str
    size_bytes: int
    stamp: str


@dataclass(frozen=True)
class Unread:
    """Why a file is not read."""

    reason: str


def find_files(sources: Sequence[str | Path], options: ReadOptions) -> tuple[list[SourceFile], Tally]:
    """The files of all sources in the order given, those of a folder sorted; and a tally of files passed over.

    Sub-folders and symbolic links are followed. Says what was recognised. Raises BertsmithError for a source that is
    missing, holds nothing to read, or is a file of a kind that is not read, and for a wrong name of the text field.
    """
    if not sources:
        raise BertsmithError("no source was given", "sources", f"name files, folders, globs or '{PYTHON_DOCS}'")
    found: list[SourceFile] = []
    passed = Tally()
    seen: set[str] = set()
    for source in sources:
        before = len(found)
        for path, name in _paths(str(source), passed):
            real = os.path.realpath(path)
            if real in seen:
                passed.note("files named twice, read once", example=name)
                continue
            seen.add(real)
            recognised = recognise(path, options)
            if isinstance(recognised, SourceFile):
                found.append(SourceFile(**vars(recognised) | {"name": name}))
            elif str(path) == str(source):
                raise BertsmithError(f"this file is not read: {recognised.reason}", path, _READ)
            else:
                passed.note(f"files passed over: {recognised.reason}", 1, path.stat().st_size, name)
        if str(source) == PYTHON_DOCS and not Path(PYTHON_DOCS).exists():
            found.append(SourceFile("", PYTHON_DOCS, PYTHON_DOCS, "", 0, pydocs.stamp()))
        elif len(found) == before:
            raise BertsmithError("this source holds no file to read", source, _nothing(passed))
    _tell(found, passed)
    return found, passed


def recognise(path: Path, options: ReadOptions) -> SourceFile | Unread:
    """Tells a file's packing and kind by its first bytes, or why it is not read. Raises as `find_files` does."""
    codec = codec_of(path)
    head = peek(path, codec, _HEAD)
    status = path.stat()
    stamp = f"{status.st_size}:{status.st_mtime_ns}"
    kind = _kind(path, codec, head.removeprefix(b"\xef\xbb\xbf"), options)
    return kind if isinstance(kind, Unread) else SourceFile(str(path), path.name, kind, codec, status.st_size, stamp)


def _kind(path: Path, codec: str, head: bytes, options: ReadOptions) -> str | Unread:
    start = head.lstrip()[:200].lower()
    if not head.strip():
        return Unread("empty or white space only")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return Unread("UTF-16 text (save it as UTF-8)")
    if b"\x00" in head or head.startswith(b"\x28\xb5\x2f\xfd"):
        return Unread("not text")
    if path.name.removesuffix(f".{codec}").lower().endswith(_TABLES):
        return Unread("a table")
    if start.startswith((b"<mediawiki", b"<!doctype html", b"<html")):
        return Unread("markup (give its plain text, for a MediaWiki dump that of WikiExtractor)")
    if head.startswith(b"<doc ") and b" id=" in head.partition(b">")[0]:
        return "wikiextractor"
    if start.startswith(b"{"):
        return _json_kind(path, codec, options)
    return options.documents


def _json_kind(path: Path, codec: str, options: ReadOptions) -> str | Unread:
    line = peek(path, codec, _LONGEST_FIRST_ROW).lstrip().partition(b"\n")[0]
    try:
        row = json.loads(line)
    except ValueError:
        looks = Path(path.name.removesuffix(f".{codec}")).suffix in (".json", ".jsonl")
        return Unread("JSON, but not one object a line") if looks else options.documents
    if row.keys() >= WIKI_FIELDS and options.text_field == "text":
        return "wikiextractor-json"
    if options.text_field not in row:
        found = ", ".join(f"'{field}'" for field in row) or "none"
        fix = f"fields found: {found}; name the one with the text by --text-field"
        raise BertsmithError(f"its rows have no field '{options.text_field}'", f"{path}, line 1", fix)
    return "jsonl"


def _paths(source: str, passed: Tally) -> Iterator[tuple[Path, str]]:
    """The files of one source, and how each is called: from the named folder on."""
    path = Path(source)
    if path.is_dir():
        for file in _walk(path, passed):
            yield file, f"{path.resolve().name}/{file.relative_to(path).as_posix()}"
    elif path.exists():
        yield path, path.name
    elif glob.has_magic(source):
        for match in sorted(glob.glob(source, recursive=True)):
            if Path(match).is_dir():
                yield from _paths(match, passed)
            else:
                yield Path(match), Path(match).name
    elif source != PYTHON_DOCS:
        siblings = [child.name for child in path.parent.iterdir()] if path.parent.is_dir() else []
        fix = nearest(path.name, siblings) if 0 < len(siblings) < 50 else "check the path"
        raise BertsmithError("there is nothing at this path", path, fix)


def _walk(folder: Path, passed: Tally) -> Iterator[Path]:
    """The files under a folder in sorted order, links followed, each folder entered once, hidden ones left out."""
    entered: set[str] = set()
    for here, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(here)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        hidden = [name for name in (*folders, *names) if name.startswith(".")]
        for name in sorted(hidden):
            passed.note("hidden files and folders, passed over", example=name)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(here, name)
            if not name.startswith(".") and file.is_file():
                yield file
            elif not name.startswith("."):
                passed.note("links to nothing and special files, passed over", example=name)


def _nothing(passed: Tally) -> str:
    reasons = "; ".join(f"{entry.count} {what}" for what, entry in passed.items())
    return f"{reasons}; {_READ}" if reasons else _READ


def _tell(found: Sequence[SourceFile], passed: Tally) -> None:
    files, sizes = Counter[str](), Counter[str]()
    for file in found:
        what = KINDS[file.kind].said if file.kind in KINDS else "the documentation that comes with Python"
        what += f", packed as {file.codec}" if file.codec else ""
        files[what] += 1
        sizes[what] += file.size_bytes
    for what, count in files.items():
        total = f", {size(sizes[what])}" if sizes[what] else ""
        say(f"source: {what} ({count:,} file{'s' if count > 1 else ''}{total})")
    for what, entry in passed.items():
        say(f"source: {entry.count:,} {what}, such as {', '.join(entry.examples)}")
