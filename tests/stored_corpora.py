"""The small sources that are kept in tests/fixtures, each prepared, and what the result is compared by."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from bertsmith.corpus.options import PrepareOptions
from bertsmith.corpus.prepare import prepare
from bertsmith.corpus.shards import Corpus

FIXTURES = Path(__file__).resolve().parent / "fixtures"
EXPECTED = FIXTURES / "corpora.json"

# Small parts and shards, so that every source is cut and several shards come of it.
_OPTIONS: dict[str, Any] = {
    "held_out": 0.25,
    "vocabulary_size": 384,
    "part_bytes": 600,
    "shard_tokens": 250,
    "workers": 1,
}
_EVALUATION = FIXTURES / "sources" / "evaluation.jsonl"
# name: (the file or folder, and the options that differ).
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "text files of a folder": ("folder", {}),
    "a book of Project Gutenberg": ("book.txt", {"held_out": 0}),
    "blank lines between documents": ("sentences.txt", {"documents": "blank-line"}),
    "a document a line": ("lines.txt", {"documents": "line"}),
    "JSON lines": ("rows.jsonl", {}),
    "JSON lines with damage": ("damaged.jsonl", {}),
    "csv": ("rows.csv", {}),
    "csv with semicolons": ("semicolons.csv", {}),
    "tsv": ("rows.tsv", {}),
    "parquet": ("rows.parquet", {}),
    "MediaWiki dump": ("dump.xml", {}),
    "MediaWiki dump in bz2 streams": ("dump.xml.bz2", {}),
    "WikiExtractor blocks": ("blocks", {}),
    "WikiExtractor JSON": ("extracted", {}),
    "bz2": ("lines.txt.bz2", {"documents": "line"}),
    "gz": ("rows.jsonl.gz", {}),
    "xz": ("lines.txt.xz", {"documents": "line"}),
    "zst": ("rows.csv.zst", {}),
    "cased": ("rows.jsonl", {"lowercase": False}),
    "without near-duplicates and evaluation text": ("rows.jsonl", {"near_duplicates": True, "exclude": (_EVALUATION,)}),
}


def prepared(name: str, out: Path) -> Corpus:
    """The corpus of a case of CASES."""
    source, changes = CASES[name]
    return prepare(FIXTURES / "sources" / source, out, options=PrepareOptions(**{**_OPTIONS, **changes}))


def facts_of(corpus: Corpus) -> dict[str, Any]:
    """What must stay of a corpus: the bytes of its shards and vocabulary, and every number of its accounting.

    The reasons for which documents are dropped or changed are words for a reader, and may be put better: of them the
    numbers are compared.
    """
    account = corpus.account
    counts = dict(account["counts"])
    for what in ("dropped", "changed"):
        counts[what] = sorted([entry["count"], entry["bytes"]] for entry in counts[what].values())
    files = sorted([*corpus.folder.rglob("*.npy"), corpus.folder / "tokenizer" / "vocab.txt"])
    return {
        "sha256": {
            path.relative_to(corpus.folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
        },
        "counts": counts,
        "splits": account["splits"],
        "special": account["tokenizer"]["special"],
        "reproducible": account["reproducible"],
    }
