"""`bertsmith download`: public corpora and benchmark data, verified, resumable, laid out as `finetune` reads them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError, TypeChecked, check_class
from bertsmith.base.locks import locked
from bertsmith.base.log import say, size, warn
from bertsmith.download.catalogue import CatalogueFile, Entry, entries_of
from bertsmith.download.fetch import Fetched, Patience, Remote, fetch, fetch_text
from bertsmith.download.unpack import WrongZip, unpack

RECORD = "downloads.json"
# The smaller BERTs that Google made: each of these numbers of layers in each of these widths, 64 of it a head.
_LAYERS, _WIDTHS, _OF_A_HEAD = (2, 4, 6, 8, 10, 12), (128, 256, 512, 768), 64
# Wikipedias whose database is called otherwise than their language.
_DATABASES = {"be-tarask": "be_x_old", "nb": "no", "zh-classical": "zh_classical"}


@dataclass(frozen=True)
class DownloadOptions(TypeChecked):
    """Options of `download`. The string under a field is its help on the command line."""

    language: str = "en"
    """The language of the Wikipedia, as in its address: de, pt, simple."""
    date: str = "latest"
    """The dump of the Wikipedia, as YYYYMMDD; latest is the newest that is finished."""
    books: tuple[int, ...] = ()
    """The numbers of the books of Project Gutenberg."""
    shape: str = ""
    """Layers and width of one of Google's smaller BERTs: 2x128 (tiny), 4x256 (mini), 4x512 (small), 8x512 (medium)."""
    url: str | None = None
    """A mirror, in place of the address that `bertsmith download` would use; the checksums stay the same."""

    def check(self) -> None:
        """Raises BertsmithError where a value makes no sense."""
        if not re.fullmatch(r"[a-z][a-z0-9]*([_-][a-z0-9]+)*", self.language):
            raise BertsmithError(f"language is '{self.language}'", "download", "use a code such as en, de or simple")
        if not re.fullmatch(r"latest|\d{8}", self.date):
            raise BertsmithError(f"date is '{self.date}'", "download", "use YYYYMMDD, or latest")
        if any(number < 1 for number in self.books):
            raise BertsmithError(f"books are {list(self.books)}", "download", "use numbers from 1")
        layers, _, width = self.shape.partition("x")
        if self.shape and (layers not in map(str, _LAYERS) or width not in map(str, _WIDTHS)):
            fix = f"use LAYERSxWIDTH, of {', '.join(map(str, _LAYERS))} layers and {', '.join(map(str, _WIDTHS))}"
            raise BertsmithError(f"shape is '{self.shape}'", "download", fix)
        if self.url is not None and not re.match(r"https?://[^/?#]", self.url):
            fix = "use an address that begins with https:// or http://"
            raise BertsmithError(f"url is '{self.url}'", "download", fix)

    @property
    def names(self) -> dict[str, int]:
        """What stands in braces of an address or a folder, of a shape."""
        layers, _, width = self.shape.partition("x")
        return {"layers": int(layers), "hidden": int(width), "heads": int(width) // _OF_A_HEAD} if self.shape else {}

    @property
    def wiki(self) -> str:
        """The database of the Wikipedia: enwiki."""
        return _DATABASES.get(self.language, self.language).replace("-", "_") + "wiki"


def download(
    name: str, out: str | Path, options: DownloadOptions | None = None, patience: Patience | None = None
) -> list[Path]:
    """Downloads the entry `name` of the catalogue below `out`; returns the folders.

    What already downloaded, and is what was asked for, is not fetched again. Each folder gets a downloads.json with the
    URL, size and SHA-256 of every file. Raises BertsmithError as `fetch` does, for a name that is unknown or
    unavailable, and for files in the way.
    """
    check_class(options, DownloadOptions, "options")
    options = options or DownloadOptions()
    options.check()
    out = files.as_path(out, "out")
    entries, folders = entries_of(name), []
    _check_used(name, entries, options)
    for entry in entries:
        folder = out / entry.folder.format(**options.names)
        say(f"{entry.name}: {entry.what}; licence: {entry.licence}")
        if entry.note:
            say(f"  {entry.note}")
        with locked(folder, doing="downloading into this folder"):
            _Download(entry, folder, options, patience).run()
        if entry.then:
            say(f"  read it by: {entry.then.format(folder=folder)}")
        folders.append(folder)
    return folders


def _check_used(name: str, entries: Sequence[Entry], options: DownloadOptions) -> None:
    """Raises BertsmithError for an option that does not apply (SQuAD has no --language), and where the numbers of books
    or a shape are missing."""
    dump = any(entry.sums for entry in entries)
    by_shape = any(entry.by_shape for entry in entries)
    uses = {"language": dump, "date": dump, "books": any(entry.by_book for entry in entries), "shape": by_shape}
    for option, used in uses.items():
        if not used and getattr(options, option) != getattr(DownloadOptions(), option):
            raise BertsmithError(f"--{option} does not apply to {name}", "download", "omit it")
    if uses["books"] and not options.books:
        fix = "add --books 84 1342; a book's number stands in its address on www.gutenberg.org"
        raise BertsmithError(f"{name} needs the numbers of the books", "download", fix)
    if uses["shape"] and not options.shape:
        fix = "add --shape 4x256, of 2 to 12 layers and a width of 128 to 768"
        raise BertsmithError(f"{name} needs the shape of the model", "download", fix)


@dataclass(frozen=True)
class _Wanted:
    """A file to have: as the catalogue has it, where it is, with size and checksum where they are known, and where it
    goes."""

    file: CatalogueFile
    remote: Remote
    path: Path


class _Download:
    """The files of one entry."""

    def __init__(self, entry: Entry, folder: Path, options: DownloadOptions, patience: Patience | None) -> None:
        self._entry, self._folder, self._options, self._patience = entry, folder, options, patience
        self._base = (options.url or entry.base).rstrip("/")
        found = files.read_json(folder / RECORD) if (folder / RECORD).is_file() else {}
        self._record: dict[str, Any] = found if isinstance(found, dict) else {}

    def run(self) -> None:
        wanted = self._dump() if self._entry.sums else self._listed()
        for each in wanted:
            if self._is_there(each):
                say(f"  {each.path.name}: already downloaded")
            else:
                self._fetch(each)
            if each.file.unpack:
                self._unpack(each)
        if self._entry.mrpc:
            split_mrpc(self._folder)

    def _fetch(self, wanted: _Wanted) -> None:
        def record(fetched: Fetched) -> None:
            # By it alone a file without a published checksum is known to be ours.
            self._record[wanted.path.name] = {
                "url": wanted.remote.url,
                "bytes": fetched.size_bytes,
                "sha256": fetched.sha256,
                "verified": fetched.verified,
            }
            files.write_json(self._folder / RECORD, self._record)

        fetched = fetch(wanted.remote, wanted.path, self._patience, record)
        how = f"{wanted.remote.algorithm} verified" if fetched.verified else "unverified: no checksum is published"
        if wanted.file.unpack and not fetched.verified:
            how += " of the zip, so what is in it is checked"
        say(f"  {wanted.path.name}: {size(fetched.size_bytes)}, {how}, sha256 {fetched.sha256}")

    def _unpack(self, wanted: _Wanted) -> None:
        """Deletes a zip that proves to be wrong, so that the next call fetches it again."""
        try:
            unpack(wanted.path, self._folder, wanted.file.holds)
        except WrongZip as error:
            wanted.path.unlink()
            raise BertsmithError(f"{error.what}; the zip was deleted", error.where, error.fix) from error

    def _is_there(self, wanted: _Wanted) -> bool:
        """Raises BertsmithError where another file has the name."""
        remote, path = wanted.remote, wanted.path
        if not path.exists():
            return False
        digest = remote.digest or self._record.get(path.name, {}).get("sha256")
        if path.is_file() and digest == files.checksum(path, remote.algorithm or "sha256"):
            return True
        fix = "move it away, or choose another folder with --out"
        raise BertsmithError("another file has the name of this download", path, fix)

    def _listed(self) -> list[_Wanted]:
        names = [{"book": book} for book in self._options.books] or [self._options.names]
        return [self._wanted(file, file.path.format(**each)) for each in names for file in self._entry.files]

    def _wanted(self, file: CatalogueFile, path: str) -> _Wanted:
        remote = Remote(f"{self._base}/{path}", file.bytes, "sha256" if file.sha256 else "", file.sha256)
        return _Wanted(file, remote, self._folder / (file.name or PurePosixPath(path).name))

    def _dump(self) -> list[_Wanted]:
        """The dump by its date, with the checksums that upstream lists: `latest` may change while it is fetched."""
        wiki, date = self._options.wiki, self._options.date
        url = f"{self._base}/{self._entry.sums.format(wiki=wiki, date=date)}"
        listed = re.findall(r"^([0-9a-f]{40})\s+\*?(\S+)$", fetch_text(url, self._patience), re.MULTILINE)
        wanted = []
        for file in self._entry.files:
            before, after = PurePosixPath(file.path).name.format(wiki=wiki, date="\0").split("\0")
            pattern = re.compile(re.escape(before) + r"(\d{8})" + re.escape(after))
            found = [(match[1], match[0], digest) for digest, name in listed if (match := pattern.fullmatch(name))]
            if not found:
                what = f"upstream lists no checksum of {before}DATE{after}"
                fix = f"that dump is still being made: choose a finished one with --date, from {self._base}/{wiki}/"
                raise BertsmithError(what, url, fix)
            day, name, digest = max(found)
            say(f"  the dump of {day}, verified with the SHA-1 that upstream lists")
            remote = Remote(f"{self._base}/{file.path.format(wiki=wiki, date=day)}", None, "sha1", digest)
            wanted.append(_Wanted(file, remote, self._folder / name))
            self._tell_others(pattern, name)
        return wanted

    def _tell_others(self, pattern: re.Pattern[str], wanted: str) -> None:
        """Names other dumps of the wiki in the folder: `prepare` would read all, and what was not finished stays."""
        for path in sorted(self._folder.iterdir()):
            name = path.name.removeprefix(".").removesuffix(".part")
            if name == wanted or not (match := pattern.fullmatch(name)):
                continue
            if path.name == name:
                warn(f"{path} is another dump of this Wikipedia: a `prepare` of the folder reads both")
            else:
                what = f"{path}: {size(path.stat().st_size)} of another dump that was not downloaded to its end"
                warn(f"{what}; finish it with --date {match[1]}, or delete it")


def split_mrpc(folder: Path) -> None:
    """Cuts Microsoft's training file into GLUE's train.tsv and dev.tsv, by the list of pairs that are dev.

    Raises BertsmithError where the list names pairs that are not in the file.
    """
    source = folder / "msr_paraphrase_train.txt"
    lines = source.read_text(encoding="utf-8-sig").split("\n")
    listed = (folder / "mrpc_dev_ids.tsv").read_text(encoding="utf-8").splitlines()
    dev_ids = {tuple(line.split("\t")) for line in listed if line.strip()}
    head, *rows = [line.removesuffix("\r") for line in lines if line.strip()]
    split = {True: [head], False: [head]}
    for row in rows:
        split[tuple(row.split("\t")[1:3]) in dev_ids].append(row)
    counts = Counter(tuple(row.split("\t")[1:3]) for row in split[True][1:])
    if counts.keys() != dev_ids:
        what = f"{len(dev_ids - counts.keys())} of {len(dev_ids)} pairs of the dev list are not in this file"
        raise BertsmithError(what, source, "delete the folder and run the command again")
    if counts.total() != len(dev_ids):
        warn(f"{source}: {counts.total() - len(dev_ids)} pairs of the dev list stand in it more than once")
    files.write_text(folder / "train.tsv", "\n".join(split[False]) + "\n")
    files.write_text(folder / "dev.tsv", "\n".join(split[True]) + "\n")
    say(f"  train.tsv: {len(split[False]) - 1:,} pairs, dev.tsv: {len(split[True]) - 1:,} pairs")
