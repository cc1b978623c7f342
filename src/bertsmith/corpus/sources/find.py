"""From the sources that the user names to the files to read, each recognised."""

from __future__ import annotations

import glob
import itertools
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted, say, size
from bertsmith.base.tally import Tally
from bertsmith.corpus.documents import ReadOptions
from bertsmith.corpus.sources.formats import KINDS
from bertsmith.corpus.sources.kept import NAME, PYTHON_DOCS, STANDARD_INPUT, Kept
from bertsmith.corpus.sources.recognise import READABLE, Unread, form_of
from bertsmith.rows.lines import Slice

_ORIGINS = {NAME: "from standard input", PYTHON_DOCS: "the documentation that comes with Python"}
_SPECIAL = "broken links and special files, skipped"


@dataclass(frozen=True)
class SourceFile:
    """A file to read. stamp: changes when the file's content does (its size and time of change).

    The other fields are those of Slice.
    """

    path: str
    name: str
    kind: str
    codec: str
    size_bytes: int
    stamp: str
    encoding: str = ""
    cells: str = ""

    def whole(self) -> Slice:
        """The whole file as one slice."""
        return Slice(self.path, self.name, self.kind, self.codec, 0, None, self.encoding, self.cells)


def as_sources(sources: str | Path | Iterable[str | Path]) -> list[str | Path]:
    """The sources as a list, where one may be given alone. Raises BertsmithError for what is no path."""
    given: Any = sources
    if hasattr(given, "columns"):  # a table of pandas, which would be read as the names of its columns
        what = f"sources is of type {type(given).__name__}, which is no list of paths"
        raise BertsmithError(what, "sources", 'write it to a file, as by table.to_csv("rows.csv"), and name that')
    named = list(given) if isinstance(given, Iterable) and not isinstance(given, str) else [given]
    for each in named:
        files.as_path(each, "sources")
    return named


def find_files(
    sources: Sequence[str | Path],
    options: ReadOptions,
    kept: Mapping[str, Kept] = MappingProxyType({}),
    own: Path | None = None,
) -> tuple[list[SourceFile], Tally]:
    """The files of all sources in the order given, those of a folder sorted; and a tally of files skipped.

    Sub-folders and symbolic links are followed. kept: by `kept.keep`, of sources that are no files. own: the folder
    that is written into, which is no source of itself. Says what was recognised. Raises BertsmithError for a
    source that is missing, holds nothing to read, or is a file of a kind that is not read, and for a wrong name of the
    text field.
    """
    if not sources or not all(map(str, sources)):
        what = "a source is given without a name" if sources else "no source was given"
        raise BertsmithError(what, "sources", f"name files, folders, globs or '{PYTHON_DOCS}'")
    found: list[SourceFile] = []
    passed = Tally()
    seen, read = set[str](), set[str]()
    for source in sources:
        before, read_before, wrong_field = len(found), False, list[BertsmithError]()
        of_kept = kept.get(str(source))
        for path, name in [(of_kept.path, of_kept.name)] if of_kept else _paths(str(source), passed, own):
            real = os.path.realpath(path)
            if real in read:
                passed.note("files named twice, read once", example=name)
                read_before = True
            if real in seen:
                continue
            seen.add(real)
            if path.name == "vocab.txt" and path != Path(source) and path.with_name("tokenizer.json").is_file():
                passed.note("vocabularies of tokenizers, skipped", example=name)
                continue
            recognised = recognise(path, options)
            if isinstance(recognised, SourceFile):
                stamp = of_kept.stamp if of_kept else recognised.stamp
                found.append(replace(recognised, name=name, stamp=stamp))
                read.add(real)
            elif path == Path(source) or of_kept:
                what = f"this file cannot be read as a source: {recognised.reason}"
                raise recognised.wrong_field or BertsmithError(what, source, recognised.fix)
            elif recognised.damaged and options.strict:
                fix = f"{recognised.fix}, or omit --strict to have it skipped and counted"
                raise BertsmithError(f"this file cannot be read: {recognised.reason}", path, fix)
            else:
                passed.note(f"files skipped: {recognised}", 1, path.stat().st_size, name)
                wrong_field += [recognised.wrong_field] if recognised.wrong_field else []
        if len(wrong_field) > len(found) - before:
            raise wrong_field[0]
        if len(found) == before and not read_before:
            raise BertsmithError("this source holds no file to read", source, _nothing(passed))
    _tell(found, passed, options)
    return found, passed


def recognise(path: Path, options: ReadOptions) -> SourceFile | Unread:
    """Tells a file's packing and kind by its content, or why it is not read. Raises as `find_files` does."""
    form = form_of(path, options)
    if isinstance(form, Unread):
        return form
    return SourceFile(str(path), path.name, size_bytes=path.stat().st_size, stamp=stamp_of(path), **vars(form))


def stamp_of(path: str | Path) -> str:
    """What changes when a file's content does; "" where there is none any more."""
    try:
        status = os.stat(path)
    except OSError:
        return ""
    return f"{status.st_size}:{status.st_mtime_ns}"


def _paths(source: str, passed: Tally, own: Path | None) -> Iterator[tuple[Path, str]]:
    """The files of one source, and how each is called: from the named folder on."""
    path = Path(source)
    if source == STANDARD_INPUT:
        fix = "only `prepare` takes it as a source: write it to a file (... > text.txt), and name that"
        raise BertsmithError("standard input cannot be read here", source, fix)
    elif path.is_dir():
        yield from _walk(path, passed, own)
    elif path.exists():
        if not path.is_file():
            fix = (
                f"write it to a file and name that, or let `prepare` keep it: ... | bertsmith prepare {STANDARD_INPUT}"
            )
            raise BertsmithError("this is a pipe or a device, and a source is read more than once", source, fix)
        yield path, path.name
    elif glob.has_magic(source):
        for match in _matches(source, passed, own):
            if match.is_dir():
                yield from _paths(str(match), passed, own)
            elif match.is_file():
                yield match, match.name
            else:
                passed.note(_SPECIAL, example=match.name)
    else:
        raise files.nothing_at(path, "there is nothing at this path")


def _matches(source: str, passed: Tally, own: Path | None) -> Iterator[Path]:
    """What a glob matches in sorted order, but for what lies in a corpus or in `own`, as `_walk` leaves them out of the
    folder that the pattern begins with."""
    named = Path(*itertools.takewhile(lambda part: not glob.has_magic(part), Path(source).parts))
    real_own = own and Path(os.path.realpath(own))
    if real_own and Path(os.path.realpath(named)).is_relative_to(real_own):
        real_own = None
    _check_folders(Path(source).parts, len(named.parts))
    is_corpus = cache(_is_corpus)  # there may be many files in a folder
    for match in map(Path, sorted(glob.glob(source, recursive=True))):
        if real_own and Path(os.path.realpath(match)).is_relative_to(real_own):
            continue
        below = len(match.parts) - len(named.parts)
        if any(map(is_corpus, match.parents[:below])):
            passed.note("files and folders in a prepared corpus, skipped", example=match.name)
        else:
            yield match


def _check_folders(parts: Sequence[str], first: int) -> None:
    """Raises BertsmithError for a folder that a glob of these parts, from `first` on, would look into and may not:
    Python's passes over it without a word."""
    wild = (number for number in range(first, len(parts)) if glob.has_magic(parts[number]))
    # With a slash at its end a pattern matches folders alone, of which there are few.
    reached = dict.fromkeys(f"{Path(*parts[: number + (parts[number] == '**')])}{os.sep}" for number in wild)
    for folder in (folder for each in reached for folder in glob.iglob(each, recursive=True)):
        try:
            os.scandir(Path(folder)).close()
        except PermissionError as error:
            _refuse(error)


def _refuse(error: OSError) -> None:
    what = f"this folder cannot be read ({error.strerror})"
    raise BertsmithError(what, error.filename, "see that it can, or name the folders that are to be read")


def _walk(folder: Path, passed: Tally, own: Path | None) -> Iterator[tuple[Path, str]]:
    """The files under a folder, as of `_paths`, in sorted order, links followed, each folder entered once, hidden ones
    left out, and corpora; `own` is not even counted, as it may be there or not yet."""
    top = folder.resolve().name
    entered = {os.path.realpath(own)} - {os.path.realpath(folder)} if own is not None else set[str]()

    for here, folders, names in os.walk(folder, onerror=_refuse, followlinks=True):
        real = os.path.realpath(here)
        if real in entered:
            folders.clear()
            continue
        entered.add(real)
        called = Path(top, os.path.relpath(here, folder))
        if _is_corpus(Path(here)):
            passed.note("folders of a prepared corpus, skipped", example=called.as_posix())
            folders.clear()
            continue
        hidden = [name for name in (*folders, *names) if name.startswith(".")]
        for name in sorted(hidden):
            passed.note("hidden files and folders, skipped", example=(called / name).as_posix())
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            file = Path(here, name)
            if not name.startswith(".") and file.is_file():
                yield file, (called / name).as_posix()
            elif not name.startswith("."):
                passed.note(_SPECIAL, example=(called / name).as_posix())


def _is_corpus(folder: Path) -> bool:
    return (folder / "corpus.json").is_file() and (folder / "tokenizer" / "tokenizer.json").is_file()


def _nothing(passed: Tally) -> str:
    reasons = "; ".join(f"{entry.count} {what}" for what, entry in passed.items())
    return f"{reasons}; {READABLE}" if reasons else READABLE


def _tell(found: Sequence[SourceFile], passed: Tally, options: ReadOptions) -> None:
    counts, sizes = Counter[str](), Counter[str]()
    for file in found:
        what = _said(file, options)
        counts[what] += 1
        sizes[what] += file.size_bytes
    for what, count in counts.items():
        total = f", {size(sizes[what])}" if sizes[what] else ""
        say(f"source: {what} ({counted(count, 'file')}{total})")
    for what, entry in passed.items():
        say(f"source: {entry.count:,} {what}, such as {', '.join(entry.examples)}")


def _said(file: SourceFile, options: ReadOptions) -> str:
    """A file's kind, for people."""
    kind = KINDS[file.kind]
    parts = [kind.said]
    if kind.has_field:
        parts.append(f"field '{options.text_field}'")
    if file.kind == "csv" and file.cells != ',"':
        parter = {"\t": "tabs"}.get(file.cells[0], f"'{file.cells[0]}'")
        parts.append(f"cells separated by {parter}, {'quoted' if len(file.cells) > 1 else 'never quoted'}")
    if file.encoding:
        parts.append(f"{file.encoding.upper()} by its byte order mark")
    if file.codec:
        parts.append(f"compressed as {file.codec}")
    if file.name in _ORIGINS:
        parts.append(_ORIGINS[file.name])
    return ", ".join(parts)
