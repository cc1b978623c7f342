"""`bertsmith bench serve`: the same classifier behind our server and behind others, each put through the same load."""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from bertsmith.base.device import choose_device
from bertsmith.base.errors import BertsmithError, nearest
from bertsmith.base.log import say
from bertsmith.bench.measure import running_cpu_seconds
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.predict.side import OURS as OFFLINE
from bertsmith.bench.predict.side import Folders
from bertsmith.bench.predict.side import Side as OfflineSide
from bertsmith.bench.predict.texts import QUICK_REAL, REAL, TextSet, chosen_classifier, ragged_texts, texts_of_length
from bertsmith.bench.process import Child, OutOfTime, SideFailed, environment_of
from bertsmith.bench.serve.client import HOST, Address, ask_once
from bertsmith.bench.serve.faults import KINDS
from bertsmith.bench.serve.load import MOST_A_SECOND, MOST_IN_FLIGHT
from bertsmith.bench.serve.phases import QUICK, SHARES, Phase, Phases, Plan
from bertsmith.bench.serve.results import row_of, tables_of
from bertsmith.bench.serve.side import OURS, PEERS, Side, sides_of
from bertsmith.bench.table import Report
from bertsmith.inference.predictor import Predictor

_MADE_LENGTHS = (8, 16, 24, 48, 128)
_COMPARED = 8
_TOLERANCE = {"fp32": 1e-3, "bf16": 3e-2}
_OFFLINE_SECONDS, _QUICK_OFFLINE_SECONDS = 8.0, 0.5
_ANSWER_SECONDS = 60.0
"""For each of the answers that are compared."""


def bench_serve(options: BenchOptions, folder: Path) -> Report:
    """Measures in `folder`, on a CPU. Raises BertsmithError for an unknown peer, a model that is not a classifier of
    texts, an `only` that no side matches, and where nothing could be measured."""
    deadline = options.deadline()
    sides = _sides(options)
    plan = QUICK if options.quick else Plan()
    predictor, about = chosen_classifier(options, folder)
    texts = _texts(predictor, options.quick)
    expected = [dict(each["scores"]) for each in predictor(texts.texts[:_COMPARED])]
    bench = ServeBench(options, predictor.folder, texts, expected, plan, folder, deadline)
    del predictor
    for side in sides:
        bench.measure(side)
    if not bench.rows:
        what = f"nothing was measured: {'; '.join(bench.left_out)}"
        raise BertsmithError(what, "bench serve", "name other servers with --against")
    told = [
        f"model: {about}",
        f"texts: {texts.name}",
        *_rules(plan),
        *bench.versions,
        *(f"left out: {each}" for each in bench.left_out),
    ]
    return Report(told, bench.rows, tables_of(bench.rows), bench.ran_on)


def _rules(plan: Plan) -> list[str]:
    shares = " and ".join(f"{share:.0%}" for share in SHARES)
    return [
        "one text a request, answered by its label and score, over kept connections; servers run one after another, "
        "each on the same cores as the generator of the load, whose processor time is in a table",
        f"saturated: {plan.clients} clients that each wait for their answer; offline: our `Predictor` on the same "
        "texts with the same threads, before and after",
        f"{shares}: requests come independently of each other (Poisson, from a fixed seed), at that share of the "
        "server's own saturated rate; latencies count from when a request was due, late or not",
        f"beside faults: {SHARES[0]:.0%} again, with the same arrivals, while others send bodies byte by byte "
        f"({KINDS[0].clients} at a time), close their side or go after a request, send what is no JSON, or 100 MB",
        f"ten times the load: for {plan.overload_seconds:g} s; an answer counts if it came while the load lasted and "
        f"within {plan.overload_limit_seconds:g} s, after which clients give up; recovered: when the first of "
        "five answers in a row that took no longer than the p99 of unloaded ones was asked for",
        f"at most {MOST_A_SECOND:,.0f} requests a second are sent, and {MOST_IN_FLIGHT} wait at a time; what exceeds "
        "that is not sent, and counted",
        "peers are in fp32, as shipped: FastAPI over pipeline is a tutorial's server, litserve makes batches of up to "
        "32 texts that came within 10 ms, infinity-emb is run by its own command; all cut texts at the length that the "
        "model reads",
    ]


def _texts(predictor: Predictor, quick: bool) -> TextSet:
    """Real texts, or made ones where the data folder has none."""
    tokenizer, longest = predictor.tokenizer, predictor.max_length
    if found := ragged_texts(tokenizer, longest, *(QUICK_REAL if quick else REAL)):
        return found
    made = [texts_of_length(tokenizer, length, 1).texts[:4] for length in _MADE_LENGTHS]
    texts = [text for several in zip(*made, strict=True) for text in several]
    name = f"{len(texts)} made ones; SST-2 and SQuAD are not in the data folder ($BERTSMITH_DATA)"
    return TextSet(name, texts, 0, [min(len(ids) + 2, longest) for ids in tokenizer.encode_ids(texts)])


def _sides(options: BenchOptions) -> list[Side]:
    """Those that `only` lets through."""
    every = sides_of(options.peers(PEERS, "serve"), choose_device("cpu", "auto").precision)
    found = [side for side in every if options.only in side.label]
    if not found:
        labels = [side.label for side in every]
        raise BertsmithError(f"no side contains '{options.only}'", "bench serve", nearest(options.only, labels))
    return found


@dataclass
class ServeBench:
    """expected: the probability of each label, in fp32, of the first texts. deadline: of time.monotonic(). Found: a row
    for each phase of each side, what was left out with the reason, the versions of peers, and what ours ran on."""

    options: BenchOptions
    model: Path
    texts: TextSet
    expected: list[dict[str, float]]
    plan: Plan
    folder: Path
    deadline: float
    rows: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    ran_on: dict[str, str] = field(default_factory=dict)

    def measure(self, side: Side) -> None:
        """All phases of a side, as far as there is time. One that fails is left out, by its name."""
        say(f"measuring {side.label}")
        try:
            with socket.create_server((HOST, 0)) as free:
                port = free.getsockname()[1]
            command = side.command(self.model, port, self.options.environments)
            if side.who != OURS:
                self.versions.append(f"{side.label}: {side.versions(self.options.environments)}")
            address = Address(port, side.path)
            with self._server(side, command, address) as server:
                _Measuring(self, side, address, int(server.ready()["pid"])).run()
        except OutOfTime:
            self.left_out.append(f"{side.label}: no time was left for all of it")
        except SideFailed as why:
            self.left_out.append(f"{side.label}: {why.what}")
        except BertsmithError as why:
            if side.who == OURS:
                raise
            self.left_out.append(f"{side.label}: {why.what.splitlines()[-1]}")

    def _server(self, side: Side, command: Sequence[str], address: Address) -> Child:
        folder = self.folder / side.label.replace(" ", "-").replace(",", "")
        spec = {
            "command": command, "port": address.port, "path": address.path,
            "body": side.body(self.texts.texts[0]).decode(), "log": folder / "output.log",
        }  # fmt: skip
        quiet = {"TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
        environment = {**quiet, **environment_of(side.who == OURS)}
        return Child("bertsmith.bench.serve.server", spec, folder, environment, self.deadline)

    def offline(self, precision: str) -> Child:
        """Our predictor, which is ready later."""
        folders = Folders(self.model, self.folder, self.folder)
        return OfflineSide(OFFLINE, "torch", precision).start(
            folders, self.folder / f"offline-{precision}", self.deadline
        )


class _Measuring:
    """One side while it is measured. pid: of its server."""

    def __init__(self, bench: ServeBench, side: Side, address: Address, pid: int) -> None:
        self._bench, self._side, self._address, self._pid = bench, side, address, pid
        self._phases = Phases(address, [side.body(text) for text in bench.texts.texts], bench.plan)

    def run(self) -> None:
        difference = self._compared()
        self._phases.warm_up()
        unloaded = self._row(self._phases.unloaded)
        unloaded["largest_difference"] = difference
        saturated = self._saturated()
        rate = saturated["texts_per_second"]
        if not rate:
            raise SideFailed(f"no answer came within {self._bench.plan.seconds:g} s under load")
        for share in SHARES:
            self._row(partial(self._phases.at, share, rate))
        self._row(partial(self._phases.at, SHARES[0], rate, faulty=True))
        self._row(partial(self._phases.overload, rate, unloaded["p99_ms"] / 1e3))

    def _compared(self) -> float:
        """The largest difference of a score from ours in fp32. Raises SideFailed where one is too large."""
        largest = 0.0
        for text, expected in zip(self._bench.texts.texts[:_COMPARED], self._bench.expected, strict=True):
            status, body = self._asked(text)
            if status != 200:
                raise SideFailed(f"it answers with status {status}: {body[:200].decode(errors='replace')}")
            try:
                found = self._side.scores(body)
            except ValueError as error:
                raise SideFailed(f"it answers {error}") from error
            # Of two labels that are as likely, either may be the answer: its score tells.
            differences = [abs(expected.get(label, math.inf) - score) for label, score in found.items()]
            largest = max([largest, *differences])
        if not largest <= _TOLERANCE[self._side.precision]:
            raise SideFailed(f"its scores differ from ours by {largest:.3g}")
        return largest

    def _asked(self, text: str) -> tuple[int, bytes]:
        with suppress(OSError):
            return ask_once(self._address, self._side.body(text), _ANSWER_SECONDS)
        raise SideFailed(f"it gave no answer within {_ANSWER_SECONDS:g} s")

    def _saturated(self) -> dict[str, Any]:
        """With what our predictor does offline, before and after."""
        if self._side.who != OURS:
            return self._row(self._phases.saturated)
        with self._bench.offline(self._side.precision) as offline:
            self._bench.ran_on["threads"] = str(offline.ready()["threads"])
            self._offline(offline, 0.0)
            seconds = _QUICK_OFFLINE_SECONDS if self._bench.options.quick else _OFFLINE_SECONDS
            before = self._offline(offline, seconds)
            row = self._row(self._phases.saturated)
            after = self._offline(offline, seconds)
        by_clock, by_cpu = ((one + other) / 2 for one, other in zip(before, after, strict=True))
        row |= {"offline_tokens_per_second": by_clock, "offline_tokens_per_cpu_second": by_cpu}
        return row

    def _offline(self, offline: Child, seconds: float) -> tuple[float, float]:
        """Tokens per second by the clock, and of the processor's time."""
        cpu = running_cpu_seconds(offline.pid)
        times = offline.ask("turn", texts=self._bench.texts.texts, rows=0, seconds=seconds, every=False)["seconds"]
        tokens = len(times) * sum(self._bench.texts.tokens)
        return tokens / sum(times), tokens / max(1e-3, running_cpu_seconds(offline.pid) - cpu)

    def _row(self, phase: Callable[[], Phase]) -> dict[str, Any]:
        """Runs a phase, and adds its row."""
        if time.monotonic() > self._bench.deadline:
            raise OutOfTime
        before = running_cpu_seconds(self._pid)
        found = phase()
        row = row_of(found, self._bench.texts.tokens, running_cpu_seconds(self._pid) - before)
        say(f"  {found.name}: {row['texts_per_second']:,.1f} texts/s, p99 {row['p99_ms'] or math.nan:,.0f} ms")
        offline = {"offline_tokens_per_second": None, "offline_tokens_per_cpu_second": None}
        self._bench.rows.append({"side": self._side.label} | offline | row)
        return self._bench.rows[-1]
