"""Contamination: which documents hold text that a model will be measured on.

A document holds it when 13 words in a row stand in it as they stand in an evaluation text, whatever their case and
punctuation (the rule of Brown et al. 2020, appendix C). The hashes of all such runs lie sorted on the disk and are
mapped by every worker: 10 bytes a run, and 2 to 4 more for a table of bits that answers most questions at once.

ngrams.npy    uint64[G], rising                files.npy    uint16[G], the file that each comes from
bits.npy      uint8, bit h >> shift is set for every hash h
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bertsmith.base.errors import BertsmithError
from bertsmith.base.tally import Tally, excerpt
from bertsmith.corpus.documents import Document, batched
from bertsmith.corpus.engines.parts import Part, fingerprint, makes_part
from bertsmith.corpus.filters.duplicates import kept_documents
from bertsmith.corpus.filters.evaluation_texts import READ, content_hash, evaluation_file
from bertsmith.corpus.filters.ngrams import Ints, Words, words_of
from bertsmith.corpus.stages.clean import CleanedPart
from bertsmith.corpus.stages.normalise import clean_text

NGRAM_WORDS = 13
HOLDS = f"with {NGRAM_WORDS} words in a row of evaluation text"
_BATCH_CHARACTERS = 500_000
_BITS_A_RUN = 16
_FEWEST_BITS = 16


@dataclass(frozen=True)
class IndexTask(Part):
    """Makes the index of files of evaluation text."""

    files: tuple[Path, ...]

    @classmethod
    def of(cls, work: Path, files: Sequence[Path]) -> Self:
        """The index of these files in a work folder. Raises BertsmithError where one is missing."""
        paths = tuple(Path(path).absolute() for path in files)
        made_of = fingerprint([(path.name, content_hash(path)) for path in paths], NGRAM_WORDS)
        return cls(work / "exclude" / "index", made_of, paths)

    def __str__(self) -> str:
        return f"reading evaluation texts of {', '.join(path.name for path in self.files)}"


@makes_part
def make_index(task: IndexTask, folder: Path) -> dict[str, Any]:
    """Writes the index; returns {"files": what it holds of each}: sha256, texts, ngrams, and

    read_as: what kind of file it was taken for. labels: values of less than two words, no text. short: texts of less
    than 13 words, which cannot be checked.
    Raises BertsmithError for a file that cannot be read or holds nothing to check.
    """
    figures, found = [], []
    for path in task.files:
        counts, hashes = _read(path)
        if not len(hashes):
            what = f"no text of this file has {NGRAM_WORDS} words, so nothing of it can be excluded"
            raise BertsmithError(what, path, f"omit it, or name another; {READ}")
        figures.append(counts)
        found.append(hashes)
    ngrams = np.concatenate(found)
    owners = np.repeat(np.arange(len(found)), [len(hashes) for hashes in found]).astype(np.uint16)
    order = np.lexsort((owners, ngrams))
    ngrams = ngrams[order]
    np.save(folder / "ngrams.npy", ngrams)
    np.save(folder / "files.npy", owners[order])
    size = max(_FEWEST_BITS, int(_BITS_A_RUN * len(ngrams) - 1).bit_length())
    bits = np.zeros(1 << (size - 3), np.uint8)
    places = ngrams >> np.uint64(64 - size)
    np.bitwise_or.at(bits, places >> np.uint64(3), _bit(places))
    np.save(folder / "bits.npy", bits)
    return {"files": figures}


def _read(path: Path) -> tuple[dict[str, Any], NDArray[np.uint64]]:
    """Figures of a file and its n-grams: uint64[G], rising, each once."""
    file, sha256 = evaluation_file(path), content_hash(path)
    counts = {"texts": 0, "short": 0, "labels": 0}
    found = [np.zeros(0, np.uint64)]
    cleaned = (clean_text(text, path.name, Tally()) for text in file.texts())
    for texts in batched(cleaned, len, _BATCH_CHARACTERS):
        words = words_of(texts)
        lengths = words.counts(len(texts))
        counts["texts"] += int((lengths > 1).sum())
        counts["short"] += int(((lengths > 1) & (lengths < NGRAM_WORDS)).sum())
        counts["labels"] += int((lengths < 2).sum())
        found.append(_distinct(words.ngrams(NGRAM_WORDS)[0]))
    hashes = _distinct(np.concatenate(found))
    return {"sha256": sha256, "read_as": file.read_as, **counts, "ngrams": len(hashes)}, hashes


def _distinct(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Rising, each once; numpy's own `unique` takes ten times as long for large integers."""
    ordered = np.sort(values)
    first = np.diff(ordered, prepend=~ordered[:1]) != 0
    return np.asarray(ordered[first], dtype=np.uint64)


def _bit(places: NDArray[np.uint64]) -> NDArray[np.uint8]:
    return np.left_shift(np.uint8(1), (places & np.uint64(7)).astype(np.uint8))


@dataclass(frozen=True)
class Index:
    """The index, mapped."""

    ngrams: NDArray[np.uint64]
    files: NDArray[np.uint16]
    bits: NDArray[np.uint8]

    @classmethod
    def open(cls, folder: Path) -> Self:
        names = ("ngrams", "files", "bits")
        return cls(*(np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)) for name in names))

    def find(self, hashes: NDArray[np.uint64]) -> tuple[Ints, Ints]:
        """int64[H]: the places in `hashes` that the index holds; int64[H]: its first row of each."""
        places = hashes >> np.uint64(64 - (8 * len(self.bits) - 1).bit_length())
        maybe = np.flatnonzero(self.bits[places >> np.uint64(3)] & _bit(places))
        rows = np.searchsorted(self.ngrams, hashes[maybe])
        rows[rows == len(self.ngrams)] = 0
        held = self.ngrams[rows] == hashes[maybe]
        return maybe[held], rows[held]

    def owners(self, row: int) -> list[int]:
        """The files that hold the n-gram whose first row this is."""
        last = int(np.searchsorted(self.ngrams, self.ngrams[row], side="right"))
        return [int(owner) for owner in self.files[row:last]]


@dataclass(frozen=True)
class ExcludeTask(Part):
    """Searches a cleaned part. drops: folders of what was dropped before. names: of the files, for examples."""

    part: int
    cleaned: Path
    drops: tuple[Path, ...]
    index: Path
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"looking for evaluation texts in part {self.part}"


@makes_part
def search_part(task: ExcludeTask, folder: Path) -> dict[str, Any]:
    """Writes drops.npy, int64[D, 2]: (part, document) of every document that holds evaluation text, and found.npy,
    int64[R], rows of the index that occur in the part. Returns a tally of the documents, and one a file."""
    cleaned, index = CleanedPart.open(task.cleaned), Index.open(task.index)
    kept = np.flatnonzero(kept_documents(cleaned, task.drops, task.part))
    search = _Search(index, task.names, cleaned)
    for batch in batched(cleaned.documents(kept), lambda each: len(each[1].text), _BATCH_CHARACTERS):
        search.add(batch)
    np.save(folder / "drops.npy", np.array([(task.part, each) for each in search.hit], np.int64).reshape(-1, 2))
    np.save(folder / "found.npy", np.array(sorted(search.rows), np.int64))
    return {"all": search.all.to_json(), "files": search.files.to_json()}


class _Search:
    """What is found in one part. hit: documents. rows: of the index. all, files: tallies of documents and bytes."""

    def __init__(self, index: Index, names: Sequence[str], cleaned: CleanedPart) -> None:
        self._index, self._names, self._cleaned = index, names, cleaned
        self.hit: list[int] = []
        self.rows: set[int] = set()
        self.all, self.files = Tally(), Tally()

    def add(self, batch: Sequence[tuple[int, Document]]) -> None:
        words = words_of([document.text for _, document in batch])
        hashes, firsts = words.ngrams(NGRAM_WORDS)
        places, rows = self._index.find(hashes)
        of_document = words.texts[firsts[places]]
        for place in np.unique(of_document).tolist():
            number, document = batch[place]
            here = np.flatnonzero(of_document == place)
            self._note(number, document, words, firsts[places[here]], rows[here])

    def _note(self, number: int, document: Document, words: Words, firsts: Ints, rows: Ints) -> None:
        """Notes a document with the first n-gram that is found in it, and the first of each file."""
        self.hit.append(number)
        self.rows.update(rows.tolist())
        size_bytes = int(self._cleaned.lengths[number, 2])
        seen: set[int] = set()
        for first, row in zip(firsts.tolist(), rows.tolist(), strict=True):
            if len(seen) == len(self._names):
                break
            for owner in self._index.owners(row):
                if owner not in seen:
                    quoted = f"{document.id}: '{words.show(first, NGRAM_WORDS)}'"
                    if not seen:
                        beginning = excerpt(document.id, document.text)
                        self.all.note(HOLDS, 1, size_bytes, f"{beginning} ... ({self._names[owner]})")
                    seen.add(owner)
                    self.files.note(str(owner), 1, size_bytes, quoted)
