"""Signals to a server: requests in it are finished, within a time, and a second one ends it at once."""

from __future__ import annotations

import http.client
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import uvicorn

from bertsmith.cli import main
from bertsmith.inference.server.batcher import Batcher, Lane, Part
from made_served import Served, serving


def without_grace(*arguments: str) -> int:
    """The command line, where uvicorn by itself waits for no request; it would for two seconds."""
    config = uvicorn.Config
    options = {"timeout_graceful_shutdown": 0}
    pytest.MonkeyPatch().setattr(uvicorn, "Config", lambda app, **given: config(app, **{**given, **options}))
    return main(arguments)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_lets_requests_finish(served_models: dict[str, Path], number: int, status: int) -> None:
    flags, rows = ("--limits.batch-tokens", "64", "--precision", "fp32"), 200
    with serving({"labels": served_models["labels"]}, *flags, does=without_grace) as served:
        answers = []
        body = {"inputs": [["word1 " * 30]] * rows}
        asking = threading.Thread(target=lambda: answers.append(served.ask("/predict", body)))
        asking.start()
        while 'bertsmith_compute_seconds_count{model="labels"}' not in served.ask("/metrics")[1]:
            time.sleep(0.01)
        assert served.stop(number) == status
        asking.join()
        assert [(each[0], len(each[1])) for each in answers] == [(200, rows)]
        assert served.lines[-1] == "the server has stopped"
        with pytest.raises(ConnectionRefusedError):
            served.ask("/health")


def slowly(*arguments: str) -> int:
    """The command line, where a batch takes so long that eight long requests are computed for minutes."""
    compute = Batcher._compute

    def late(batcher: Batcher, lane: Lane, parts: Sequence[Part]) -> None:
        time.sleep(0.05)
        compute(batcher, lane, parts)

    pytest.MonkeyPatch().setattr(Batcher, "_compute", late)
    return main(arguments)


def asked_by_eight(served: Served) -> list[threading.Thread]:
    """Clients with a long request each, who may get no answer."""

    def ask() -> None:
        with suppress(ConnectionError, http.client.HTTPException):
            served.ask("/embed", {"inputs": ["word1 " * 30] * 1000})

    asking = [threading.Thread(target=ask) for _ in range(8)]
    for thread in asking:
        thread.start()
    return asking


def test_what_takes_longer_than_the_stop_may_last_is_dropped_and_counted(served_models: dict[str, Path]) -> None:
    flags = ("--limits.batch-tokens", "32", "--limits.stop-seconds", "1")
    with serving({"vectors": served_models["vectors"]}, *flags, does=slowly) as served:
        asking = asked_by_eight(served)  # in batches of a sequence each
        while 'bertsmith_queue_requests{model="vectors"} 8' not in served.ask("/metrics")[1]:
            time.sleep(0.01)
        assert served.stop() == 143
        for thread in asking:
            thread.join()
        assert any("8 requests not finished within 1 s and dropped" in line for line in served.lines)


def test_a_second_interrupt_ends_it_at_once_whatever_is_computed(served_models: dict[str, Path]) -> None:
    with serving({"vectors": served_models["vectors"]}, "--limits.batch-tokens", "32", does=slowly) as served:
        asking = asked_by_eight(served)
        while 'bertsmith_compute_seconds_count{model="vectors"}' not in served.ask("/metrics")[1]:
            time.sleep(0.01)
        served.process.send_signal(signal.SIGINT)
        served.until_logged("SIGINT received")
        assert served.stop(signal.SIGINT) == 130
        for thread in asking:
            thread.join()


def test_a_signal_while_models_are_loaded_ends_it(served_models: dict[str, Path]) -> None:
    with serving(served_models, wait_for="listening on") as served:
        assert served.stop() == 143
