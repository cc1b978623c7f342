"""First pass over the sources: a part reads its slices, cleans the documents and hashes them.

texts.bin      ids and texts of the documents that are kept so far, one after the other, UTF-8
lengths.npy    int64[N, 4]: bytes of the id, bytes of the text, bytes of the text as it was read, LINE_BREAKS index
hashes.npy     uint64[N, 2]: of the text without regard to white space
sorted.npy     uint64[N, 3]: (hash, hash, index of the document) in rising order: what the search for duplicates reads
account.json   what was read, dropped and changed
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bertsmith.base.tally import excerpt
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import LINE_BREAKS, Document, ReadOptions
from bertsmith.corpus.engines.parts import Part, fingerprint, finished, make_once
from bertsmith.corpus.shards import offsets_of
from bertsmith.corpus.sources.find import SourceFile
from bertsmith.corpus.sources.formats import edges_of, read_documents
from bertsmith.corpus.stages.normalise import HASH_BYTES, clean_text, text_hash
from bertsmith.corpus.stages.totals import keep_account
from bertsmith.rows.compressed import UNPACKED
from bertsmith.rows.lines import Slice

# A part in which a page took too long is made again with this many times the limit.
TIMES_AS_LONG = 10


@dataclass(frozen=True)
class CleanTask(Part):
    """One part. made_of: fingerprint of the slices, the files' stamps and the options, but for their limit of time."""

    slices: tuple[Slice, ...]
    options: ReadOptions
    min_characters: int

    def __str__(self) -> str:
        return f"reading {', '.join(part.name for part in self.slices[:3])}{' ...' if len(self.slices) > 3 else ''}"

    @property
    def set_aside(self) -> Path:
        """The folder that says that a page of the part took too long."""
        return self.folder.parent.with_name("slow") / self.folder.name

    @property
    def last(self) -> CleanTask:
        """The same with ten times the limit, which the part may then be made of as well."""
        seconds = TIMES_AS_LONG * self.options.page_seconds
        return replace(
            self, made_of=fingerprint(self.made_of, seconds), options=replace(self.options, page_seconds=seconds)
        )


class _TooSlowError(Exception):
    """Of a part: pages of it took too long. Its argument lists them."""


def plan_parts(files: Sequence[SourceFile], part_bytes: int) -> list[list[Slice]]:
    """Cuts the sources into parts of about `part_bytes`, in order; the same for any number of workers.

    A file that can be sliced is; small files share a part; a packed file and a text that is one document stay whole.
    """
    parts: list[list[Slice]] = []
    held = part_bytes
    for file in files:
        whole = file.whole()
        for begin, end in itertools.pairwise(edges_of(whole, file.size_bytes, part_bytes)):
            weight = (file.size_bytes if end is None else end) - (begin or 0)
            weight *= UNPACKED if file.codec else 1
            if held + weight // 2 >= part_bytes:
                parts.append([])
                held = 0
            parts[-1].append(replace(whole, begin=begin or 0, end=end))
            held += weight
    return parts


def clean_part(task: CleanTask) -> dict[str, Any]:
    """Makes the part; returns how many documents and bytes of text are left.

    Its account stays there: see `totals`. Where pages took too long, only {"slow": pages} is kept, and returned:
    `clean_again` makes the part then.
    """
    for folder, made_of in ((task.folder, task.last.made_of), (task.set_aside, task.made_of)):
        if (found := finished(folder, made_of)) is not None:
            return found

    def make(folder: Path) -> dict[str, Any]:
        account, figures = clean_into(folder, task)
        if account.slow:
            raise _TooSlowError(account.slow)
        return figures

    try:
        return make_once(task.folder, task.made_of, make)
    except _TooSlowError as error:
        slow = {"slow": error.args[0]}
        return make_once(task.set_aside, task.made_of, lambda folder: slow)


def clean_again(task: CleanTask) -> dict[str, Any]:
    """Makes a part that was set aside, with ten times the limit; pages that still take too long are dropped, and listed
    in its Account."""
    made = finished(task.folder, task.made_of)
    last = task.last
    return made or make_once(task.folder, last.made_of, lambda folder: clean_into(folder, last)[1])


def clean_into(folder: Path, task: CleanTask) -> tuple[Account, dict[str, Any]]:
    """Writes the files of a part, slow pages left out; returns its account and what `clean_part` returns."""
    account = Account()
    lengths: list[tuple[int, int, int, int]] = []
    hashes = bytearray()
    with open(folder / "texts.bin", "wb") as file:
        for part in task.slices:
            for document in read_documents(part, task.options, account):
                read_bytes = len(document.text.encode())
                text = _cleaned(document, read_bytes, task.min_characters, account).encode()
                if not text:
                    continue
                name, breaks = document.id.encode(errors="replace"), LINE_BREAKS.index(document.line_breaks)
                file.write(name)
                file.write(text)
                lengths.append((len(name), len(text), read_bytes, breaks))
                hashes += text_hash(text)
    table = np.array(lengths, dtype=np.int64).reshape(-1, 4)
    _save_hashes(folder, hashes)
    np.save(folder / "lengths.npy", table)
    keep_account(folder, account.to_json())
    return account, {"documents": len(table), "bytes": int(table[:, 1].sum())}


def _cleaned(document: Document, size_bytes: int, min_characters: int, account: Account) -> str:
    """The cleaned text, or nothing for a document that is dropped. size_bytes: of its text as it was read."""
    account.read(size_bytes)
    text = clean_text(document.text, document.id, account.changed)
    if not text:
        account.drop("empty", size_bytes, document.id)
        return ""
    if len(text) < min_characters:
        account.drop(f"shorter than {min_characters} characters", size_bytes, excerpt(document.id, text))
        return ""
    return text


def _save_hashes(folder: Path, hashes: bytearray) -> None:
    values = np.frombuffer(bytes(hashes), dtype="<u8").reshape(-1, HASH_BYTES // 8).astype(np.uint64)
    order = np.lexsort((values[:, 1], values[:, 0]))
    np.save(folder / "hashes.npy", values)
    np.save(folder / "sorted.npy", np.column_stack([values[order], order.astype(np.uint64)]))


@dataclass(frozen=True)
class CleanedPart:
    """A part read back, document by document, in any order."""

    path: Path
    lengths: NDArray[np.int64]
    hashes: NDArray[np.uint64]
    offsets: NDArray[np.int64]

    @classmethod
    def open(cls, folder: Path) -> Self:
        lengths = np.load(folder / "lengths.npy", allow_pickle=False)
        hashes = np.load(folder / "hashes.npy", allow_pickle=False)
        return cls(folder / "texts.bin", lengths, hashes, offsets_of(lengths[:, 0] + lengths[:, 1]))

    def held_out(self, share: float) -> NDArray[np.bool_]:
        """bool[N]: documents that are never trained on. A hash decides, so they stay when the corpus grows."""
        return np.asarray(self.hashes[:, 1] < share * 2.0**64)

    def sampled(self, share: float) -> NDArray[np.bool_]:
        """bool[N]: an even sample of this share, independent of what is held out."""
        return np.asarray(self.hashes[:, 0] < share * 2.0**64)

    def documents(self, chosen: Iterable[int]) -> Iterator[tuple[int, Document]]:
        """The documents of these indexes, with them."""
        with open(self.path, "rb") as file:
            for index in map(int, chosen):
                file.seek(self.offsets[index])
                name_bytes, text_bytes, _, breaks = self.lengths[index].tolist()
                raw = file.read(name_bytes + text_bytes)
                yield index, Document(raw[:name_bytes].decode(), raw[name_bytes:].decode(), LINE_BREAKS[breaks])
