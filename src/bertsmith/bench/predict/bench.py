"""`bertsmith bench predict`: classification of texts by our backends, by transformers' pipeline and by the engines
used directly, in turns; latencies at fixed shapes, and throughput on real texts of many lengths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.predict.side import BASELINE, BATCHES, Folders, Side, groups_of, sides_of
from bertsmith.bench.predict.texts import QUICK_REAL, REAL, TextSet, chosen_classifier, ragged_texts, texts_of_length
from bertsmith.bench.process import NO_TIME, Child, OutOfTime, SideFailed, nothing_measured
from bertsmith.bench.table import Report, Table
from bertsmith.bench.turns import a_round
from bertsmith.inference.export.export import ExportOptions, export
from bertsmith.tokens.tokenizer import Tokenizer

PEERS = ("transformers", "onnxruntime", "openvino")
LENGTHS = (32, 128, 384)
_SHORTEST = 3
"""[CLS], a word and [SEP]."""
PERCENTILES = (50, 90, 95, 99)
_ROUNDS, _QUICK_ROUNDS = 5, 1
_SECONDS, _QUICK_SECONDS = 4.0, 0.05
_RULES = (
    "from texts to labels: making tokens is part of it, on all sides; each side is a process of its own",
    "ours is `Predictor`, which sorts rows by length and leaves padding out; the pipeline and the engines used "
    "directly pad rows to the longest that they run together, and take real texts as they come, 1, 8 or 32 at once, "
    "whichever was fastest in a turn that is not counted; all cut texts at the length that the model reads",
    "the graph that engines are given directly is PyTorch's export of transformers' model, in int8 by the "
    "engines' own tools: ONNX Runtime's quantize_dynamic, each column of the weights with its own scale, and "
    "compress_weights of OpenVINO's NNCF, which takes embeddings too; both quantise inputs as they come",
    "sides of one precision take turns, beginning with another one each round, after a turn that is not counted, and "
    "fp32, bf16 and int8 come one after another, so that few models are in memory; the pipeline in fp32 takes turns in "
    "all three, for the last column, and the table has that of fp32",
    "percentiles are over all calls, texts per second of the round that is the median",
)


def bench_predict(options: BenchOptions, folder: Path) -> Report:
    """Measures in `folder`, on a CPU. Raises BertsmithError for an unknown peer, a model that is no classifier,
    `lengths` that it does not read, and an `only` that no case matches."""
    deadline = options.deadline()
    sides = sides_of(options.peers(PEERS, "predict"))
    predictor, about = chosen_classifier(options, folder)
    sets, left_out = _sets(options, predictor.tokenizer, predictor.max_length)
    groups = groups_of(sides)
    cases = {precision: [each for each in sets if options.only in _case(each, precision)] for precision in groups}
    if not any(cases.values()):
        fix = f"cases are: {'; '.join(each.name for each in sets)}; each in {', '.join(groups)}"
        raise BertsmithError(f"no case contains '{options.only}'", "bench predict", fix)
    folders = Folders(predictor.folder, folder / "exports", folder / "padded")
    del predictor
    _write_graphs(folders, folder, any(not side.is_ours for side in sides), left_out)
    rows: list[dict[str, Any]] = []
    for precision, group in groups.items():
        if not cases[precision]:
            continue
        with ExitStack() as ends:
            children = {
                side: ends.enter_context(side.start(folders, folder / f"{precision}-{number}", deadline))
                for number, side in enumerate(group)
            }
            for each in cases[precision]:
                say(f"measuring {_case(each, precision)}")
                try:
                    rows += _measured(each, precision, children, options.quick, left_out)
                except OutOfTime:
                    left_out.append(f"{_case(each, precision)}: {NO_TIME}")
    rows = _in_order(rows, [each.name for each in sets], [side.label for side in sides])
    if not rows:
        raise nothing_measured(left_out, "bench predict")
    told = [
        f"model: {about}",
        *_RULES,
        *_fastest(rows, [side.label for side in sides if side.is_ours]),
        *(f"left out: {each}" for each in dict.fromkeys(left_out)),
    ]
    return Report(told, rows, tables(rows), {"threads": str(rows[0]["threads"])})


def _sets(options: BenchOptions, tokenizer: Tokenizer, longest: int) -> tuple[list[TextSet], list[str]]:
    """All texts, and what is left out. longest: the most tokens of a text that the model reads."""
    unread = [str(length) for length in options.lengths if not _SHORTEST <= length <= longest]
    if unread:
        what = f"this model reads texts of {_SHORTEST} to {longest} tokens, so there are none of {', '.join(unread)}"
        raise BertsmithError(what, "--lengths", "name lengths that it reads")
    lengths = dict.fromkeys(options.lengths or [min(length, longest) for length in LENGTHS])
    every = [texts_of_length(tokenizer, length, batch) for length in lengths for batch in BATCHES]
    ragged = ragged_texts(tokenizer, longest, *(QUICK_REAL if options.quick else REAL))
    left_out = [] if ragged else ["real texts: SST-2 and SQuAD are not in the data folder ($BERTSMITH_DATA)"]
    if ragged:
        every += [ragged, replace(ragged, name=f"{ragged.name}, one by one", rows=1, every=True)]
    return every, left_out


def _case(texts: TextSet, precision: str) -> str:
    """What `only` is looked for in."""
    return f"{texts.name} in {precision}"


def _write_graphs(folders: Folders, folder: Path, has_peers: bool, left_out: list[str]) -> None:
    for backend in ("onnx", "openvino"):
        export(
            folders.model,
            folders.exports / backend,
            ExportOptions(to=backend, int8=True, few_lengths=True, measure=False),
        )
    if has_peers:
        spec = {"who": "graphs", "model": folders.model, "padded": folders.padded}
        with Child("bertsmith.bench.predict.peer", spec, folder / "graphs") as child:
            try:
                child.ready()
            except SideFailed as why:
                left_out.append(f"graphs of transformers' model: {why.what}")


def _measured(
    texts: TextSet, precision: str, children: Mapping[Side, Child], quick: bool, left_out: list[str]
) -> list[dict[str, Any]]:
    """A row for each side, ours first. A side that fails is left out of the case. Raises OutOfTime where not even one
    round was finished."""
    seconds, rounds = (_QUICK_SECONDS, _QUICK_ROUNDS) if quick else (_SECONDS, _ROUNDS)
    sides = dict(children)
    found: list[dict[Side, dict[str, Any]]] = []

    def fail(side: Side, why: str) -> None:
        left_out.append(f"{texts.name}, {side.label}: {why}")

    for number in range(1 + rounds):
        how = {"rows": texts.rows, "seconds": seconds if number else 0.0, "every": texts.every}
        try:
            answers = a_round(sides, number, fail, texts=texts.texts, **how)
        except OutOfTime:
            if len(found) < 2:
                raise
            rest = f"{rounds + 1 - number} of {rounds} rounds"
            left_out.append(f"{_case(texts, precision)}: {rest}, for which no time was left")
            break
        found.append(answers)
    counted = found[1:]
    rows = [
        _row(texts, side, [each[side]["seconds"] for each in counted], counted[0][side]["at_once"], child)
        for side, child in sides.items()
    ]
    baseline = next((row["texts_per_second"] for row in rows if row["side"] == BASELINE.label), None)
    return [{**row, "beside_pipeline": baseline and row["texts_per_second"] / baseline} for row in rows]


def _in_order(rows: Sequence[dict[str, Any]], cases: Sequence[str], sides: Sequence[str]) -> list[dict[str, Any]]:
    """By case and side; of a side that was measured in several groups the first row."""
    first: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        first.setdefault((row["case"], row["side"]), row)
    return [first[case, side] for case in cases for side in sides if (case, side) in first]


def _row(texts: TextSet, side: Side, rounds: Sequence[Sequence[float]], at_once: int, child: Child) -> dict[str, Any]:
    calls = texts.rows or len(texts.texts)
    rate = median(calls * len(each) / sum(each) for each in rounds)
    every = [1e3 * seconds for each in rounds for seconds in each]
    return {
        "case": texts.name,
        "side": side.label,
        "texts_per_second": rate,
        "tokens_per_second": rate * sum(texts.tokens) / len(texts.texts),
        "calls": len(every),
        "at_once": at_once or None,
        "threads": child.ready()["threads"],
        **{f"p{percent}_ms": float(np.percentile(every, percent)) for percent in PERCENTILES},
    }


def _fastest(rows: Sequence[Mapping[str, Any]], ours: Sequence[str]) -> list[str]:
    """Which of ours gave most texts a second, and which of those in fp32, whose answers are the model's own."""
    found = []
    for what, sides in (("", ours), (" in fp32", [side for side in ours if side.endswith("fp32")])):
        best: dict[str, list[str]] = {}
        for case in dict.fromkeys(row["case"] for row in rows):
            own = [row for row in rows if row["case"] == case and row["side"] in sides]
            if own:
                best.setdefault(max(own, key=lambda row: row["texts_per_second"])["side"], []).append(case)
        if best:
            named = "; ".join(f"{side} ({', '.join(cases)})" for side, cases in best.items())
            found.append(f"fastest of ours{what} here: {named}")
    return found


def tables(rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    """A table for each case."""
    found = []
    for case in dict.fromkeys(row["case"] for row in rows):
        own = [row for row in rows if row["case"] == case]
        head = ["", "texts/s", "tokens/s", *(f"p{percent} ms" for percent in PERCENTILES), "calls", "pipeline, fp32"]
        lines = [
            [
                row["side"] + (f", {row['at_once']} at once" if row["at_once"] and " x " not in case else ""),
                f"{row['texts_per_second']:,.1f}",
                f"{row['tokens_per_second']:,.0f}",
                *(f"{row[f'p{percent}_ms']:,.1f}" for percent in PERCENTILES),
                f"{row['calls']:,}",
                f"{row['beside_pipeline']:.2f}x" if row["beside_pipeline"] else "",
            ]
            for row in own
        ]
        title = f"{case} tokens" if " x " in case else case
        found.append(Table(title, head, lines))
    return found
