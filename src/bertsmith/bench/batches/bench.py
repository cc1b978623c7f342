"""`bertsmith bench batches`: reading a prepared corpus back as masked, paired, packed batches."""

from __future__ import annotations

import statistics
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bertsmith.base.log import say, size
from bertsmith.bench.batches.cases import (
    GLOBAL_BATCH,
    LARGE_BATCH,
    LARGE_RANKS,
    LARGE_STEPS,
    MICRO_BATCH_TOKENS,
    STARTS,
)
from bertsmith.bench.made_corpus import open_or_prepare
from bertsmith.bench.measure import CaseSpec, Measured, measure, measure_peer
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.table import Report, Table
from bertsmith.corpus.shards import Corpus

PEERS = ("datasets",)
# What is timed of large steps, as the tables call it.
DEALING = {"dealing as it comes": "as it comes", "dealing": "into one shape"}
# The peer makes a Python object of every row, so it is given the first shards only.
_PEER_SHARDS = 4


def bench_batches(options: BenchOptions, folder: Path) -> Report:
    """Measures one case after the other in `folder`. Raises BertsmithError for a peer that is not known, a
    length that no pair has, and as `Corpus.open` and `prepare` do."""
    peers = options.peers(PEERS, "batches")
    lengths = options.sequence_lengths()
    corpus, what = open_or_prepare(options, max(options.sizes_bytes()), folder)
    found = {length: _measured(corpus, length, folder, bool(peers)) for length in lengths}
    tokens, documents = corpus.tokens("train"), corpus.documents("train")
    about = [
        f"corpus: {what}, {tokens:,} tokens of {documents:,} documents in {len(corpus.shards('train'))} shards",
        f"steps of {GLOBAL_BATCH} sequences, micro-batches of {MICRO_BATCH_TOKENS:,} tokens, one rank, one thread",
        "tokens are real ones, special pieces included: there is no padding; CPU time is user and system of all "
        "processes, without the imports of the main one",
        f"the peer reads rows of the first {_PEER_SHARDS} shards at most; it draws no pairs and stops at no document",
    ]
    rows = [
        {"case": what, "length": length, **asdict(measured)}
        for length, cases in found.items()
        for what, measured in cases.items()
    ]
    return Report(about, rows, tables(found, tokens))


def _measured(corpus: Corpus, length: int, folder: Path, against_datasets: bool) -> dict[str, Measured]:
    """What was measured at a length, by case."""
    index = folder / f"batches-index-{length}"
    shards = min(_PEER_SHARDS, len(corpus.shards("train")))
    found = {}
    for what in ("index", "epoch", "start", "large", "agree", *(["collator"] if against_datasets else [])):
        say(f"measuring batches at length {length}: {what}")
        options = {"length": length, "index": index, "shards": shards}
        out = folder / f"batches-{what}-{length}"
        spec = CaseSpec("bertsmith.bench.batches.cases", what, corpus.folder, out, corpus.folder / "tokenizer", options)
        found[what] = (measure_peer if what == "collator" else measure)(spec)
    return found


def tables(measured: dict[int, dict[str, Measured]], corpus_tokens: int) -> list[Table]:
    """The tables of all cases, by length and name."""
    lengths = measured.items()
    return [
        Table(
            "Batches of an epoch",
            ["", "tokens", "tokens per CPU s", "ours is", "peak memory"],
            [row for length, found in lengths for row in _speed_rows(length, found)],
        ),
        Table(
            "The index of an epoch, built once and kept",
            ["length", "sequences", "CPU s", "CPU s per 1e9 tokens", "on disk", "bytes a token"],
            [_index_row(length, found["index"], corpus_tokens) for length, found in lengths],
        ),
        Table(
            f"The first batch of a run that starts at a random step, the index there: the slowest of {STARTS}; and "
            "whether batches are the same for 1 thread and 2 processes, for 1 and 2 ranks",
            ["length", "seconds", "CPU s", "same for processes", "same for ranks"],
            [_start_row(length, found["start"].result, found["agree"].result) for length, found in lengths],
        ),
        Table(
            f"CPU milliseconds of the first of {LARGE_RANKS} ranks for a step of {LARGE_BATCH:,} sequences: the median "
            f"of {LARGE_STEPS} steps; of shards, for those that a step is the first to need, the most",
            ["length", "references", "dealing", "into one shape", "shards, read", "shards, cut", "all but shards"],
            [_large_row(length, found["large"].result["seconds"]) for length, found in lengths],
        ),
        Table(
            f"Milliseconds in which a rank deals a step of {LARGE_BATCH:,} sequences to {LARGE_RANKS} ranks, the index "
            f"there: the median of {LARGE_STEPS} steps, and the most",
            ["dealing", "CPU time", "the most", "by the clock", "the most"],
            [_dealing_row(length, how, found["large"].result) for length, found in lengths for how in DEALING],
        ),
    ]


def _speed_rows(length: int, found: dict[str, Measured]) -> list[list[str]]:
    epoch, peer = found["epoch"], found.get("collator")
    tokens = epoch.result["tokens"]
    rate = tokens / epoch.cpu_seconds
    ours = f"bertsmith at {length}: pairs, masks and packing drawn afresh"
    rows = [[ours, f"{tokens:,}", f"{rate:,.0f}", "1", size(epoch.peak_bytes)]]
    theirs = f"datasets + transformers' collator, rows of {length}: masks only"
    if peer is not None and peer.failed:
        rows.append([theirs, peer.failed, "-", "-", "-"])
    elif peer is not None:
        tokens = peer.result["tokens"]
        ratio = f"{rate * peer.cpu_seconds / tokens:.1f}x as fast"
        rows.append([theirs, f"{tokens:,}", f"{tokens / peer.cpu_seconds:,.0f}", ratio, size(peer.peak_bytes)])
    return rows


def _index_row(length: int, built: Measured, corpus_tokens: int) -> list[str]:
    each = built.cpu_seconds / corpus_tokens * 1e9
    sequences, seconds = f"{built.result['instances']:,}", f"{built.cpu_seconds:.2f}"
    bytes_a_token = f"{built.disk_bytes / corpus_tokens:.3f}"
    return [f"{length}", sequences, seconds, f"{each:.0f}", size(built.disk_bytes), bytes_a_token]


def _large_row(length: int, seconds: dict[str, list[float]]) -> list[str]:
    usual = {name: f"{statistics.median(each) * 1000:,.1f}" for name, each in seconds.items()}
    most = {name: f"{max(each) * 1000:,.1f}" for name, each in seconds.items()}
    names = ("references", *DEALING)
    return [f"{length}", *(usual[each] for each in names), most["shards"], most["shards cut"], usual["all but shards"]]


def _dealing_row(length: int, how: str, result: dict[str, Any]) -> list[str]:
    times = [result[each][how] for each in ("seconds", "wall_seconds")]
    cells = [f"{figure(each) * 1000:,.1f}" for each in times for figure in (statistics.median, max)]
    return [f"{DEALING[how]}, at {length}", *cells]


def _start_row(length: int, start: dict[str, Any], agree: dict[str, Any]) -> list[str]:
    slowest = [f"{max(start[name]):.2f}" for name in ("start_seconds", "start_cpu_seconds")]
    return [f"{length}", *slowest, *("yes" if agree[f"{each}_agree"] else "NO" for each in ("workers", "ranks"))]
