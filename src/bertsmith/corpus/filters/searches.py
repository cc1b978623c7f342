"""The filters over all cleaned parts: duplicates, then evaluation text, then near-duplicates; each skips what the ones
before it drop. What they find goes into the account."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertsmith.base.log import counted, duration, say
from bertsmith.base.tally import Entry, Tally
from bertsmith.corpus.engines.local import Engine
from bertsmith.corpus.engines.parts import fingerprint, part_folder
from bertsmith.corpus.filters.contamination import HOLDS, NGRAM_WORDS, ExcludeTask, IndexTask, make_index, search_part
from bertsmith.corpus.filters.duplicates import find_duplicates
from bertsmith.corpus.filters.near_duplicates import (
    NearTask,
    SignTask,
    band_rows,
    bands_for,
    find_buckets,
    find_near_copies,
    library,
    recall,
    sign_part,
)
from bertsmith.corpus.filters.ranges import RangeTask, ranges_for
from bertsmith.corpus.filters.selection import ChooseTask, choose_documents

# Runs a stage with a progress bar: (what it is called, function, tasks, bytes of each part) -> results.
Stage = Callable[[str, Callable[[Any], dict[str, Any]], Sequence[Any], Sequence[int]], list[dict[str, Any]]]


@dataclass
class Selection:
    """What the searches found. kept: a folder a part. account: on evaluation text and near-duplicates, for corpus.json.

    fingerprint: of all that decided.
    """

    kept: tuple[Path, ...]
    dropped: Tally
    changed: Tally
    account: dict[str, Any]
    fingerprint: str


@dataclass(frozen=True)
class FilterOptions:
    """See PrepareOptions, whose fields these are."""

    exclude: tuple[Path, ...]
    exclude_action: str
    near_duplicates: bool
    near_threshold: float
    near_shingle: int


class Searches:
    """Runs the searches over the cleaned parts, in `work`, by `engine`, those over text by `stage`."""

    def __init__(self, work: Path, engine: Engine, stage: Stage, options: FilterOptions) -> None:
        self._work, self._engine, self._stage, self._options = work, engine, stage, options

    def run(self, parts: Sequence[Path], part_bytes: Sequence[int], documents: int, whole: str) -> Selection:
        """All searches, and what is left.

        parts: folders of the cleaned parts. part_bytes: of their text. documents: how many there are. whole:
        fingerprint of all parts. Raises BertsmithError for files of evaluation text that cannot be used.
        """
        self._parts, self._part_bytes = tuple(parts), part_bytes
        options = self._options
        found = Selection((), Tally(), Tally(), {}, whole)
        ranges = self._ranges("duplicates", "copies", whole, documents, self._parts)
        self._engine.run(find_duplicates, ranges)
        copies = tuple(task.folder for task in ranges)
        excluded = self._excluded(copies, found) if options.exclude else []
        dropped = excluded if options.exclude_action == "drop" else []
        near = self._near(copies, dropped, documents, found) if options.near_duplicates else ()
        tasks = [
            ChooseTask(
                part_folder(self._work / "chosen", number),
                fingerprint(found.fingerprint, number),
                number,
                self._parts[0].parent,
                copies,
                tuple(dropped[number : number + 1]),
                near,
            )
            for number in range(len(parts))
        ]
        for result in self._engine.run(choose_documents, tasks):
            found.dropped.add(Tally.from_json(result["dropped"]))
        found.kept = tuple(task.folder for task in tasks)
        return found

    def _ranges(self, name: str, what: str, whole: str, rows: int, parts: tuple[Path, ...]) -> list[RangeTask]:
        """A task for each range of `rows` rows that the parts have sorted. whole: fingerprint of them all."""
        count = ranges_for(rows)
        folders = [part_folder(self._work / name, index) for index in range(count)]
        return [
            RangeTask(folder, fingerprint(whole, count, index), what, index, count, parts)
            for index, folder in enumerate(folders)
        ]

    def _excluded(self, copies: tuple[Path, ...], found: Selection) -> list[Path]:
        """The folders of the parts' hits; their figures go into `found`."""
        started = time.monotonic()
        index = IndexTask.of(self._work, self._options.exclude)
        listed = self._engine.run(make_index, [index])[0]["files"]
        found.fingerprint = fingerprint(found.fingerprint, index.made_of, self._options.exclude_action)
        names = tuple(path.name for path in index.files)
        folders = [part_folder(self._work / "exclude", number) for number in range(len(self._parts))]
        tasks = [
            ExcludeTask(folder, fingerprint(found.fingerprint, number), number, part, copies, index.folder, names)
            for number, (folder, part) in enumerate(zip(folders, self._parts, strict=True))
        ]
        results = self._stage("looking for evaluation texts", search_part, tasks, self._part_bytes)
        hits, by_file = Tally(), Tally()
        for result in results:
            hits.add(Tally.from_json(result["all"]))
            by_file.add(Tally.from_json(result["files"]))
        drop = self._options.exclude_action == "drop"
        (found.dropped if drop else found.changed).add(hits)
        seen = _runs_found(index.folder, folders, len(names))
        rows = [
            _file_account(by_file.get(str(number), Entry()), {"file": name, **counts, "found": runs})
            for number, (name, counts, runs) in enumerate(zip(names, listed, seen, strict=True))
        ]
        found.account["contamination"] = {"words": NGRAM_WORDS, "action": self._options.exclude_action, "files": rows}
        what = "dropped" if drop else "kept, as --exclude-action report asks"
        took = duration(time.monotonic() - started)
        say(f"evaluation text: {counted(hits.count, 'document')} {HOLDS}, {what}; {took}")
        return folders

    def _near(
        self, copies: tuple[Path, ...], excluded: Sequence[Path], documents: int, found: Selection
    ) -> tuple[Path, ...]:
        """The folder of the near-duplicates; their figures go into `found`."""
        started = time.monotonic()
        shingle, threshold = self._options.near_shingle, self._options.near_threshold
        by, rows = library(), band_rows(threshold)
        whole = fingerprint(found.fingerprint, by, shingle, rows)
        drops = [(*copies, *excluded[number : number + 1]) for number in range(len(self._parts))]
        folders = [part_folder(self._work / "signed", number) for number in range(len(self._parts))]
        signing = [
            SignTask(folder, fingerprint(whole, number), number, self._parts[number], drops[number], shingle, rows)
            for number, folder in enumerate(folders)
        ]
        self._stage("signing documents", sign_part, signing, self._part_bytes)
        buckets = self._ranges("buckets", "near-duplicates", whole, documents * bands_for(rows), tuple(folders))
        counts = tuple(result["buckets"] for result in self._engine.run(find_buckets, buckets))
        found.fingerprint = fingerprint(whole, threshold)
        shared = tuple(task.folder for task in buckets)
        near = NearTask(self._work / "near", found.fingerprint, tuple(folders), shared, counts, threshold)
        result = self._engine.run(find_near_copies, [near])[0]
        found.account["near_duplicates"] = {
            "by": by,
            "threshold": threshold,
            "words_a_run": shingle,
            "found_at_threshold": round(recall(threshold, rows), 3),
            **result,
        }
        say(
            f"near-duplicates: {result['dropped']:,} have an n-gram Jaccard similarity of {threshold:.0%} or more "
            f"({shingle}-grams) with an earlier one ({result['compared']:,} compared); "
            f"{duration(time.monotonic() - started)}"
        )
        return (near.folder,)


def _file_account(hits: Entry, counts: dict[str, Any]) -> dict[str, Any]:
    """What corpus.json holds of one file of evaluation text, which is logged too."""
    say(
        f"evaluation text: {counts['file']}, read as {counts['read_as']}: {counted(counts['texts'], 'text')}, "
        f"{counts['short']:,} too short to check; {counts['found']:,} of {counts['ngrams']:,} {NGRAM_WORDS}-grams "
        f"found, in {counted(hits.count, 'document')}"
    )
    return {**counts, "documents": hits.count, "bytes": hits.bytes, "examples": hits.examples}


def _runs_found(index: Path, parts: Sequence[Path], count: int) -> list[int]:
    """How many different n-grams of each evaluation file occur anywhere in the corpus."""
    ngrams, owners = (np.load(index / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ("ngrams", "files"))
    found = np.zeros(len(ngrams), np.bool_)
    for part in parts:
        found[np.load(part / "found.npy", allow_pickle=False)] = True
    # Rows of the same n-gram are adjacent, and the first one was found.
    for row in np.flatnonzero(ngrams[1:] == ngrams[:-1]).tolist():
        found[row + 1] |= found[row]
    return [int(each) for each in np.bincount(owners[found], minlength=count)]
