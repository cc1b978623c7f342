"""Near-duplicates: documents that share most of their n-grams of words with an earlier one that is kept.

MinHash (Broder 1997, by datasketch) and bands (Leskovec, Rajaraman and Ullman, Mining of Massive Datasets, chapter 3):
each part writes the signatures of its documents, and hashes of the signatures' bands in rising order; ranges of band
hashes give the documents that share a band; then one pass in source order keeps a document unless its signature agrees
with that of an earlier document that was kept. So what is dropped is always like something that stays, not like a copy
of a copy. Memory does not grow with the corpus: all but one part's rows and a range of band hashes stays on the disk.

signatures.npy    uint32[K, 128]               documents.npy    int64[K], the documents of the part that they are of
bands.npy         uint64[K * bands, 2]: (hash of a band, row of the signature), rising
members.npy       int64[M, 3]: (part, row, bucket) of what shares a band hash with another, rising
drops.npy         int64[D, 5]: (part, document) of every near-duplicate and of what it is like, agreement in 1/1000
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.base import streams
from bertsmith.base.errors import BertsmithError
from bertsmith.base.versions import version_of
from bertsmith.corpus.documents import batched
from bertsmith.corpus.engines.parts import Part, makes_part
from bertsmith.corpus.filters.duplicates import kept_documents
from bertsmith.corpus.filters.ngrams import Ints, words_of
from bertsmith.corpus.filters.ranges import RangeTask
from bertsmith.corpus.shards import offsets_of
from bertsmith.corpus.stages.clean import CleanedPart

Signatures = NDArray[np.uint32]

PERMUTATIONS = 128
_SEED = 1
# Named, so that a later version of the library gives the same signatures or none.
_SCHEME = "affine32"
_RECALL = 0.95
_BATCH_CHARACTERS = 250_000
_RUNS_AT_ONCE = 1024
# Documents that are kept and share a band are compared with later ones up to this many a bucket.
LEADERS = 8


def library() -> str:
    """Name and version of what makes signatures. Raises BertsmithError where it is not installed."""
    version = version_of("datasketch")
    if version is None:
        fix = "pip install 'bertsmith[near]', or omit --near-duplicates"
        raise BertsmithError("finding near-duplicates needs the package datasketch", "--near-duplicates", fix)
    return f"datasketch {version}"


def signed_bytes(threshold: float) -> int:
    """What a document's signature, number and bands take on disk."""
    return 4 * PERMUTATIONS + 8 + 16 * bands_for(band_rows(threshold))


def band_rows(threshold: float) -> int:
    """How many values of a signature a band has: the most with which documents that agree in `threshold` of all values
    share a band with a probability of 95%."""
    fitting = [rows for rows in range(1, PERMUTATIONS + 1) if recall(threshold, rows) >= _RECALL]
    return max(fitting, default=1)


def bands_for(rows: int) -> int:
    """How many bands of so many values a signature has."""
    return PERMUTATIONS // rows


def recall(agreement: float, rows: int) -> float:
    """The probability that two documents share one of the bands."""
    return 1.0 - (1.0 - agreement**rows) ** bands_for(rows)


@dataclass(frozen=True)
class SignTask(Part):
    """Signs the documents of a cleaned part but those in `drops`. shingle: words of a run. rows: values of a band."""

    part: int
    cleaned: Path
    drops: tuple[Path, ...]
    shingle: int
    rows: int

    def __str__(self) -> str:
        return f"signing part {self.part}"


@makes_part
def sign_part(task: SignTask, folder: Path) -> dict[str, Any]:
    """Writes signatures.npy, documents.npy and bands.npy; returns the count of documents."""
    cleaned = CleanedPart.open(task.cleaned)
    kept = np.flatnonzero(kept_documents(cleaned, task.drops, task.part))
    texts = (document.text for _, document in cleaned.documents(kept))
    signed = [signatures_of(some, task.shingle) for some in batched(texts, len, _BATCH_CHARACTERS)]
    signatures = np.concatenate([np.zeros((0, PERMUTATIONS), np.uint32), *signed])
    np.save(folder / "signatures.npy", signatures)
    np.save(folder / "documents.npy", kept.astype(np.int64))
    # A text without a word has an empty sketch, which says nothing about it.
    with_words = np.flatnonzero((signatures != np.iinfo(np.uint32).max).any(axis=1))
    hashes = band_hashes(signatures[with_words], task.rows)
    owners = np.repeat(with_words.astype(np.uint64), hashes.shape[1])
    order = np.argsort(hashes, axis=None, kind="stable")
    np.save(folder / "bands.npy", np.column_stack([hashes.ravel()[order], owners[order]]))
    return {"documents": len(signatures)}


def signatures_of(texts: list[str], shingle: int) -> Signatures:
    """uint32[texts, 128]: of the runs of `shingle` words of each text, of all its words where it has fewer."""
    from datasketch import MinHash

    # One for all texts, as to make one takes longer than to fill it; what is put into it is hashed already.
    sketch = MinHash(num_perm=PERMUTATIONS, seed=_SEED, scheme=_SCHEME, hashfunc=int)
    words = words_of(texts)
    hashes, firsts = words.ngrams(shingle)
    runs = np.searchsorted(words.texts[firsts], np.arange(len(texts) + 1))
    edges = np.searchsorted(words.texts, np.arange(len(texts) + 1))
    values = (hashes & np.uint64(0xFFFFFFFF)).tolist()
    out = np.empty((len(texts), PERMUTATIONS), np.uint32)
    for row in range(len(texts)):
        sketch.clear()
        for start in range(runs[row], runs[row + 1], _RUNS_AT_ONCE):
            sketch.update_batch(values[start : min(start + _RUNS_AT_ONCE, runs[row + 1])])
        if runs[row] == runs[row + 1]:
            sketch.update_batch((words.hashes[edges[row] : edges[row + 1]] & np.uint64(0xFFFFFFFF)).tolist())
        out[row] = sketch.hashvalues
    return out


def band_hashes(signatures: Signatures, rows: int) -> NDArray[np.uint64]:
    """uint64[K, bands]: a hash of every `rows` values of a signature, other for other bands."""
    bands = bands_for(rows)
    values = signatures[:, : bands * rows].reshape(len(signatures), bands, rows).astype(np.uint64)
    hashes = np.broadcast_to(streams.mix(np.arange(bands, dtype=np.uint64)), (len(signatures), bands))
    for place in range(rows):
        hashes = streams.mix(hashes ^ values[:, :, place])
    return np.array(hashes)


@makes_part
def find_buckets(task: RangeTask, folder: Path) -> dict[str, Any]:
    """Writes members.npy; returns how many buckets of two documents or more there are."""
    table = task.table("bands.npy")
    _, bucket, counts = np.unique(table[:, 0], return_inverse=True, return_counts=True)
    shared = counts > 1
    numbers = np.cumsum(shared) - 1
    chosen = shared[bucket]
    members = np.column_stack([table[chosen][:, [2, 1]].astype(np.int64), numbers[bucket[chosen]]])
    np.save(folder / "members.npy", members[np.lexsort((members[:, 2], members[:, 1], members[:, 0]))])
    return {"buckets": int(shared.sum())}


@dataclass(frozen=True)
class NearTask(Part):
    """The pass over all documents that share a band. ranges: folders of buckets. buckets: how many each has."""

    signed: tuple[Path, ...]
    ranges: tuple[Path, ...]
    buckets: tuple[int, ...]
    threshold: float

    def __str__(self) -> str:
        return "comparing near-duplicates"


@makes_part
def find_near_copies(task: NearTask, folder: Path) -> dict[str, Any]:
    """Writes drops.npy; returns how many documents share a band with another, and how many are dropped."""
    leaders_file = folder / "leaders.bin"
    search = _Search(task, leaders_file)
    drops = np.concatenate([search.part(part) for part in range(len(task.signed))])
    search.leaders = None
    leaders_file.unlink(missing_ok=True)
    np.save(folder / "drops.npy", drops)
    return {"compared": search.compared, "dropped": len(drops)}


class _Search:
    """Keeps or drops documents in source order. leaders: int64[buckets, 8] on the disk, kept documents of each bucket
    as 1 + part * 2**32 + row, 0 for none."""

    def __init__(self, task: NearTask, leaders_file: Path) -> None:
        self._task = task
        self._members = [np.load(path / "members.npy", mmap_mode="r", allow_pickle=False) for path in task.ranges]
        self._first_bucket = offsets_of(np.array(task.buckets, np.int64))
        shape = (int(self._first_bucket[-1]), LEADERS)
        self.leaders = np.memmap(leaders_file, np.int64, "w+", shape=shape) if shape[0] else None
        self.compared = 0
        self._array = lru_cache(maxsize=512)(_array)

    def part(self, part: int) -> Ints:
        """Decides about the documents of one part; the rows of drops.npy that it gives."""
        found = [np.zeros((0, 2), np.int64)]
        for members, first_bucket in zip(self._members, self._first_bucket[:-1].tolist(), strict=True):
            first, last = np.searchsorted(members[:, 0], (part, part + 1))
            found.append(members[first:last, 1:] + np.array((0, first_bucket)))
        rows = np.concatenate(found)
        rows = rows[np.argsort(rows[:, 0], kind="stable")]
        edges = np.flatnonzero(np.diff(rows[:, 0], prepend=-1, append=-1)) if len(rows) else np.zeros(1, np.int64)
        self.compared += len(edges) - 1
        decided = [
            self._decide(part, int(rows[begin, 0]), rows[begin:end, 1]) for begin, end in pairwise(edges.tolist())
        ]
        return np.array([drop for drop in decided if drop], np.int64).reshape(-1, 5)

    def _decide(self, part: int, row: int, buckets: Ints) -> tuple[int, ...] | None:
        """The document's row of drops.npy, or None where it is kept."""
        assert self.leaders is not None
        leaders = np.array(self.leaders[buckets])
        others = np.unique(leaders[leaders > 0]) - 1
        signature = self._array(self._task.signed[part], "signatures")[row]
        if len(others):
            theirs = [
                self._array(self._task.signed[each >> 32], "signatures")[each & 0xFFFFFFFF] for each in others.tolist()
            ]
            agreements = (np.array(theirs) == signature).sum(axis=1)
            best = int(agreements.argmax())
            if agreements[best] >= self._task.threshold * PERMUTATIONS:
                like, like_row = int(others[best]) >> 32, int(others[best]) & 0xFFFFFFFF
                documents = (part, self._document(part, row), like, self._document(like, like_row))
                return *documents, round(1000 * int(agreements[best]) / PERMUTATIONS)
        free = (leaders == 0).any(axis=1)
        self.leaders[buckets[free], (leaders[free] == 0).argmax(axis=1)] = 1 + (part << 32) + row
        return None

    def _document(self, part: int, row: int) -> int:
        return int(self._array(self._task.signed[part], "documents")[row])


def _array(folder: Path, name: str) -> NDArray[Any]:
    return np.asarray(np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False))
