"""`bertsmith bench prepare`: our preparation against three others, over the same text with the same vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted, say, size
from bertsmith.base.processes import default_workers
from bertsmith.bench.measure import CaseSpec, Measured, measure, measure_peer
from bertsmith.bench.options import SIZES_FIX, BenchOptions
from bertsmith.bench.table import Report, Table
from bertsmith.bench.text import Text, cut_texts, default_source, name_sources, vocabulary_for

OURS, PEERS = "ours", ("nvidia", "tokenizers", "datasets")
# A side that is slow in pure Python is given this share of each text.
_SLOW_SHARE = 20


@dataclass(frozen=True)
class Side:
    """One way to prepare text. label: its row in the tables. slow: gets smaller texts, as the report says."""

    name: str
    label: str
    options: dict[str, Any]
    slow: bool = False


def sides(workers: int, against: Sequence[str]) -> list[Side]:
    """Ours first, then those of `PEERS` that it is compared with."""
    known = [
        Side(OURS, f"bertsmith prepare, {counted(workers, 'worker')}", {"workers": workers}),
        Side("nvidia", "NVIDIA-style, pure-Python tokenizer, one copy at 128", {"length": 128}, slow=True),
        Side("tokenizers", "tokenizers alone: ids to a file", {}),
        Side("datasets", "datasets + transformers: map, group_texts to 512", {"length": 512}),
    ]
    return [side for side in known if side.name in (OURS, *against)]


@dataclass(frozen=True)
class Case:
    """A side over a text."""

    side: Side
    text: Text
    measured: Measured

    @property
    def rate(self) -> float:
        """Bytes of text per CPU second."""
        return self.text.text_bytes / self.measured.cpu_seconds

    def row(self) -> dict[str, Any]:
        """The case as JSON can hold it."""
        if self.measured.failed:
            return {"side": self.side.name, "label": self.side.label, "failed": self.measured.failed}
        counts = {"text_bytes": self.text.text_bytes, "documents": self.text.documents}
        return {"side": self.side.name, "label": self.side.label, **counts, **asdict(self.measured)} | {
            "bytes_per_cpu_second": self.rate,
            "disk_bytes_per_token": self.measured.disk_bytes / max(self.measured.result["tokens"], 1),
        }


def bench_prepare(options: BenchOptions, folder: Path) -> Report:
    """Measures every side at every size in `folder`, one after the other, and returns what was found.

    Raises BertsmithError for sizes that do not rise, an unknown peer, a source without text, a side that fails, and a
    side that did not read what it was given.
    """
    sizes = options.sizes_bytes()
    if list(sizes) != sorted(set(sizes)):
        raise BertsmithError(f"sizes are {list(options.sizes)}", "--sizes", SIZES_FIX)
    measured_sides = sides(options.workers or default_workers(), options.peers(PEERS, "prepare"))
    source = options.source or (default_source(),)
    slow_sizes = [max(1, each // _SLOW_SHARE) for each in sizes]
    every_size = sorted({*sizes, *slow_sizes})
    by_size = dict(zip(every_size, cut_texts(source, every_size, folder), strict=True))
    vocabulary, what = vocabulary_for(options.tokenizer, by_size[every_size[-1]], folder / "tokenizer")
    cases: list[Case] = []
    for side in measured_sides:
        for each in slow_sizes if side.slow else sizes:
            case = _measured(side, by_size[each], vocabulary, folder / f"{side.name}-{each}")
            cases.append(case)
            if case.measured.failed:
                break
    about = [
        f"text: {name_sources(source)}, one file, a document a line; vocabulary: {what}",
        f"slow sides get 1/{_SLOW_SHARE} of each text, its beginning",
        "CPU time is user and system of all processes, without the imports of the main one; peak memory is the most "
        "that all processes held at one time, shared memory counted once",
    ]
    return Report(about, [case.row() for case in cases], tables(cases))


def _measured(side: Side, text: Text, vocabulary: Path, out: Path) -> Case:
    say(f"measuring {side.label}: {size(text.text_bytes)}")
    spec = CaseSpec("bertsmith.bench.prepare.sides", side.name, text.path, out, vocabulary, side.options)
    measured = (measure if side.name == OURS else measure_peer)(spec)
    read = measured.result
    if not measured.failed and (read["text_bytes"], read["documents"]) != (text.text_bytes, text.documents):
        what = f"{side.label} read {read['documents']:,} documents of {read['text_bytes']:,} bytes"
        given = f"it was given {text.documents:,} of {text.text_bytes:,} bytes"
        raise BertsmithError(f"{what}; {given}: the comparison would not be one", text.path, "report this")
    return Case(side, text, measured)


def tables(cases: Sequence[Case]) -> list[Table]:
    """Speed and memory."""
    return [_speed(cases), _memory(cases)]


def _last(cases: Sequence[Case]) -> list[Case]:
    """Each side at its largest text."""
    return list({case.side.name: case for case in cases}.values())


def _speed(cases: Sequence[Case]) -> Table:
    head = ["", "text", "CPU s", "MB per CPU s", "ours is", "on disk", "bytes a token", "start-up CPU s"]
    ours = next(case for case in _last(cases) if case.side.name == OURS)
    rows = []
    for case in _last(cases):
        found = case.measured
        if found.failed:
            rows.append([case.side.label, found.failed, *["-"] * (len(head) - 2)])
            continue
        rows.append(
            [
                case.side.label,
                size(case.text.text_bytes),
                f"{found.cpu_seconds:.1f}",
                f"{case.rate / 1e6:.2f}",
                "1" if case is ours else f"{ours.rate / case.rate:.1f}x as fast",
                size(found.disk_bytes),
                f"{found.disk_bytes / max(found.result['tokens'], 1):.2f}",
                f"{found.startup_seconds:.1f}",
            ]
        )
    return Table("Speed and size on disk, each at its largest text", head, rows)


def _memory(cases: Sequence[Case]) -> Table:
    by_side: dict[str, list[Case]] = {}
    for case in cases:
        by_side.setdefault(case.side.label, []).append(case)
    most = max(len(each) for each in by_side.values())
    rows = []
    for label, each in by_side.items():
        cells = [
            case.measured.failed or f"{size(case.measured.peak_bytes)} ({size(case.text.text_bytes)})" for case in each
        ]
        rows.append([label, *cells, *["-"] * (most - len(cells))])
    return Table("Peak memory (and the text it was for)", ["", *(["small", "middle", "large"] * most)[:most]], rows)
