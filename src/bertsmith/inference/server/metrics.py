"""What a server counts, as Prometheus reads it.

prometheus_client is used for the format (escaping, histograms, what a scraper may ask for): it is one package of pure
Python, needs nothing else, and is imported by the server alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, PlatformCollector, ProcessCollector
from prometheus_client.exposition import generate_latest

from bertsmith.inference.server.batcher import Lane

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOKENS = (16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_SEQUENCES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass
class Account:
    """What is known of a request, for the log and the counts; nothing of its texts. route: "" where there is none.
    truncated: rows that lost tokens. empty: rows with a text of which the model knows nothing. long: whether what is
    made of it next, texts or answer, takes a while."""

    method: str
    route: str = ""
    model: str = ""
    rows: int = 0
    tokens: int = 0
    truncated: int = 0
    empty: int = 0
    status: int = 499  # the client went before there was an answer
    seconds: float = 0.0
    long: bool = False


class Metrics:
    """The counts of one server, in a registry of its own; also the batcher's `Observer`."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        by_route, by_model = ("route", "method"), ("model",)
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        histogram = partial(Histogram, registry=registry, buckets=_SECONDS)
        self.cut_connections = counter(
            "bertsmith_cut_connections", "Connections that waited for their clients, cut to make room."
        )
        self._requests = counter("bertsmith_requests", "Requests that were answered.", (*by_route, "status"))
        self._seconds = histogram("bertsmith_request_seconds", "From the head of a request to its answer.", by_route)
        self._rows = counter("bertsmith_rows", "Rows that were answered.", by_model)
        self._tokens = counter("bertsmith_tokens", "Tokens of these rows.", by_model)
        self._truncated = counter("bertsmith_truncated_rows", "Rows that lost tokens.", by_model)
        self._empty = counter("bertsmith_empty_rows", "Rows with a text of which the model knows nothing.", by_model)
        self._batch_tokens = histogram("bertsmith_batch_tokens", "Tokens of a batch.", by_model, buckets=_TOKENS)
        self._batch_sequences = histogram(
            "bertsmith_batch_sequences", "Sequences of a batch.", by_model, buckets=_SEQUENCES
        )
        self._compute = histogram("bertsmith_compute_seconds", "Time in the model of a batch.", by_model)
        self._wait = histogram("bertsmith_queue_seconds", "Wait before the first token is computed.", by_model)
        self._queue = gauge("bertsmith_queue_requests", "Requests that wait.", by_model)
        self._queue_tokens = gauge("bertsmith_queue_tokens", "Tokens that wait.", by_model)

    def request(self, account: Account) -> None:
        """Counts a request."""
        self._requests.labels(account.route, account.method, str(account.status)).inc()
        self._seconds.labels(account.route, account.method).observe(account.seconds)
        if account.model and account.status == 200:
            self._rows.labels(account.model).inc(account.rows)
            self._tokens.labels(account.model).inc(account.tokens)
            self._truncated.labels(account.model).inc(account.truncated)
            self._empty.labels(account.model).inc(account.empty)

    def batch(self, lane: Lane, sequences: int, tokens: int, seconds: float) -> None:
        self._batch_tokens.labels(lane.model).observe(tokens)
        self._batch_sequences.labels(lane.model).observe(sequences)
        self._compute.labels(lane.model).observe(seconds)

    def waited(self, lane: Lane, seconds: float) -> None:
        self._wait.labels(lane.model).observe(seconds)

    def text(self, lanes: Sequence[Lane]) -> bytes:
        """All counts, with what waits in these lanes now."""
        for model in {lane.model for lane in lanes}:
            own = [lane for lane in lanes if lane.model == model]
            self._queue.labels(model).set(sum(len(lane.waiting) for lane in own))
            self._queue_tokens.labels(model).set(sum(lane.tokens for lane in own))
        return generate_latest(self._registry)
