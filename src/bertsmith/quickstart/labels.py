"""Labelled rows that a corpus carries by itself: the package of a docstring, or the sub-folder or file of a text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertsmith.base.log import counted, size
from bertsmith.base.streams import generator, stream_key
from bertsmith.corpus.accounting import Account
from bertsmith.corpus.documents import ReadOptions
from bertsmith.corpus.sources import python_docs
from bertsmith.corpus.sources.find import SourceFile, find_files
from bertsmith.corpus.sources.formats import read_documents

Row = dict[str, str]

LABELS_AT_LEAST, LABELS_AT_MOST = 2, 50
WORDS_AT_LEAST, WORDS_AT_MOST = 20, 60
# A label is read up to this many bytes of text and passages: enough for its share of the rows.
_LABEL_BYTES, _LABEL_PASSAGES = 2_000_000, 1000
_FIFTH = 5

# What each package calls itself; hidden in every row, whichever package it is from, so that no name gives it away.
_OWN_NAMES = {
    "python": ("python", "cpython", "pep"),
    "numpy": ("numpy", "np", "ndarray"),
    "torch": ("torch", "pytorch", "aten", "aotautograd"),
    "scipy": ("scipy",),
    "sklearn": ("sklearn", "scikit-learn", "scikit"),
    "matplotlib": ("matplotlib", "mpl", "pyplot", "plt"),
    "sympy": ("sympy",),
    "networkx": ("networkx", "nx"),
}
_NAMES = re.compile(
    rf"\b(?:{'|'.join(re.escape(name) for names in _OWN_NAMES.values() for name in names)})\b", re.IGNORECASE
)


@dataclass(frozen=True)
class RowCounts:
    """About how many rows to draw over all labels; of many labels more, so that each has some, up to a limit."""

    train: int = 1000
    dev: int = 500
    train_of_label: int = 0
    train_at_most: int = 2000

    def of_label(self, labels: int) -> tuple[int, int]:
        """Rows of each of so many labels to train and to evaluate on."""
        train = max(self.train, min(self.train_of_label * labels, self.train_at_most))
        return max(1, train // labels), max(1, train * self.dev // self.train // labels)


@dataclass(frozen=True)
class Passage:
    """A text with its label.

    group: passages of one group (a module, a document) are all in train or all in dev. late: in dev, where text is
    parted by place.
    """

    text: str
    label: str
    group: str
    late: bool = False


@dataclass(frozen=True)
class Labelled:
    """Rows for a classifier. question: what the classes mean. rule: how train and dev were divided."""

    question: str
    rule: str
    train: list[Row]
    dev: list[Row]


@dataclass(frozen=True)
class Unlabelled:
    """Why a text has no labels."""

    reason: str


def rows_of_docstrings(rows: RowCounts, seed: int) -> Labelled | Unlabelled:
    """Docstrings of at least 20 words with the package that they are from, package names masked, parted by module."""
    passages, hidden = [], 0
    for docstring in python_docs.collect().docstrings:
        text, names = _NAMES.subn("[MASK]", docstring.text)
        words = text.split()
        if len(words) >= WORDS_AT_LEAST:
            passages.append(Passage(" ".join(words[:WORDS_AT_MOST]), docstring.package, docstring.module))
            hidden += names
    rule = f"parted by module; {hidden:,} names of packages masked, texts cut after {WORDS_AT_MOST} words"
    return _part(passages, "which package is a docstring from?", rule, rows, seed)


def rows_of_sources(sources: Sequence[str], options: ReadOptions, rows: RowCounts, seed: int) -> Labelled | Unlabelled:
    """Passages of 20 to 60 words with the sub-folder, or else the file, that they are from."""
    files, _ = find_files(sources, options)
    by_label, what = _label_files(sources, files)
    if not LABELS_AT_LEAST <= len(by_label) <= LABELS_AT_MOST:
        found = counted(len(by_label), what)
        return Unlabelled(f"labels are sub-folders or files where there are 2 to 50 of them, and here are {found}")
    passages = [each for label, members in by_label.items() for each in _passages(label, members, options)]
    documents = Counter(label for label, _ in {(each.label, each.group) for each in passages})
    rule = "parted by document"
    if what == "file" or any(documents[label] < 2 for label in by_label):
        passages = _by_place(passages, seed)
        why = "a file is a label by its documents alone" if what == "file" else "a label has one document only"
        rule = f"{why}, so the last fifth of each document is for evaluation, of short documents one in five"
    rule += (
        f"; passages of {WORDS_AT_LEAST} to {WORDS_AT_MOST} words, from the first {_LABEL_PASSAGES:,} or "
        f"{size(_LABEL_BYTES)} of each label"
    )
    return _part(passages, f"which {what} is a passage from?", rule, rows, seed)


def _label_files(sources: Sequence[str], files: Sequence[SourceFile]) -> tuple[dict[str, list[SourceFile]], str]:
    """The files of each label. Sub-folders are labels where the one source has several, else files are."""
    folders: dict[str, list[SourceFile]] = {}
    if len(sources) == 1 and Path(sources[0]).is_dir():
        for file in files:
            inner = Path(file.path).relative_to(sources[0]).parts
            folders.setdefault(inner[0] if len(inner) > 1 else "", []).append(file)
    if "" not in folders and LABELS_AT_LEAST <= len(folders) <= LABELS_AT_MOST:
        return folders, "sub-folder"
    return {file.name: [file] for file in files}, "file"


def _passages(label: str, files: Iterable[SourceFile], options: ReadOptions) -> list[Passage]:
    """The passages of a label, in the order of its text, up to the limits above."""
    passages: list[Passage] = []
    held = 0
    for file in files:
        for document in read_documents(file.whole(), options, Account()):
            for text in _cut(document.text):
                passages.append(Passage(text, label, document.id))
                held += len(text)
                if held > _LABEL_BYTES or len(passages) >= _LABEL_PASSAGES:
                    return passages
    return passages


def _cut(text: str) -> Iterable[str]:
    """Paragraphs of at least 20 words, cut after 60; shorter ones are joined to the next."""
    words: list[str] = []
    for paragraph in re.split(r"\n\s*\n|\n(?=\S)", text):
        words += paragraph.split()
        if len(words) >= WORDS_AT_LEAST:
            yield " ".join(words[:WORDS_AT_MOST])
            words = []


def _by_place(passages: Sequence[Passage], seed: int) -> list[Passage]:
    """Groups by place: the first four fifths of each document's passages, and the last.

    A document of fewer than five passages goes whole to one side, one in five of them to the last.
    """
    sizes = Counter((each.label, each.group) for each in passages)
    short: dict[str, list[str]] = {}
    for (label, document), count in sizes.items():
        if count < _FIFTH:
            short.setdefault(label, []).append(document)
    whole = set()
    for label, documents in short.items():
        order = generator(stream_key(seed, "short documents", label)).permutation(len(documents))
        whole |= {(label, documents[index]) for index in order[: len(documents) // _FIFTH]}
    seen: Counter[tuple[str, str]] = Counter()
    placed = []
    for each in passages:
        key = each.label, each.group
        seen[key] += 1
        late = key in whole or seen[key] > sizes[key] - sizes[key] // _FIFTH
        placed.append(Passage(each.text, each.label, "last fifth" if late else "beginning", late))
    return placed


def _part(passages: Sequence[Passage], question: str, rule: str, rows: RowCounts, seed: int) -> Labelled | Unlabelled:
    """Draws about even numbers of each label for train and dev, no group on both sides."""
    of_label: dict[str, list[Passage]] = {}
    for each in passages:
        of_label.setdefault(each.label, []).append(each)
    if len(of_label) < LABELS_AT_LEAST:
        found = "only one label" if of_label else "no label"
        return Unlabelled(f"{found} has passages of at least {WORDS_AT_LEAST} words")
    train_rows, dev_rows = rows.of_label(len(of_label))
    train, dev, short = [], [], []
    for label, mine in sorted(of_label.items()):
        chosen = generator(stream_key(seed, "labels", label)).permutation(len(mine))
        held_out = _dev_groups(mine, seed)
        parts = [[mine[i] for i in chosen if (mine[i].group in held_out) == late] for late in (False, True)]
        if not parts[0] or not parts[1]:
            short.append(label)
            continue
        train += parts[0][:train_rows]
        dev += parts[1][:dev_rows]
    if len(of_label) - len(short) < LABELS_AT_LEAST:
        return Unlabelled("fewer than two labels have enough text for both training and evaluation")
    if short:
        rule += f"; left out for too little text: {', '.join(short)}"
    sides = ([{"text": each.text, "label": each.label} for each in side] for side in (train, dev))
    return Labelled(question, rule, *sides)


def _dev_groups(passages: Sequence[Passage], seed: int) -> set[str]:
    """Groups with about a third of a label's passages; the late ones where text is parted by place."""
    sizes = Counter(each.group for each in passages)
    groups = sorted(sizes)
    late = {each.group for each in passages if each.late}
    if late or len(groups) < 2:
        return late
    order = generator(stream_key(seed, "groups", passages[0].label)).permutation(len(groups))
    held: set[str] = set()
    count = 0
    for index in order[:-1]:
        held.add(groups[index])
        count += sizes[groups[index]]
        if count >= len(passages) / 3:
            break
    return held
