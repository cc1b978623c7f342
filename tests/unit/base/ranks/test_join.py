"""Which errors are those of connections between ranks, and how a rank leaves for them."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import torch.distributed as dist

from bertsmith.base.errors import EXIT_OUR_BUG, EXIT_RANK_LOST
from bertsmith.base.ranks import join
from bertsmith.base.ranks.join import Joining, of_connections
from bertsmith.base.ranks.places import Place
from bertsmith.base.ranks.store import RankTaken
from bertsmith.base.ranks.verdict import Verdict
from bertsmith.cli.ending import tell
from made_commands import Command


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:2"),
        RuntimeError("[/gloo/transport/tcp/buffer.cc] Read error [10.0.0.1]:3: Connection reset by peer"),
        RuntimeError("[..] Application timeout caused pair closure"),
        RuntimeError("Timed out waiting 1800000ms for recv operation to complete"),
        dist.DistBackendError("NCCL error: ... ncclRemoteError: A call failed possibly due to a network error"),
        dist.DistNetworkError("failed to recv, got 0 bytes"),
    ],
)
def test_a_lost_connection_is_known_by_its_words(error: Exception) -> None:
    assert of_connections(error)
    outer = ValueError("while summing")
    outer.__cause__ = error
    assert of_connections(outer)


@pytest.mark.parametrize(
    "error",
    [
        dist.DistBackendError("NCCL error: invalid usage: Duplicate GPU detected : rank 0 and rank 1 both on 1b000"),
        RuntimeError("ProcessGroupGloo::allreduce: unsupported type for gloo"),
        RuntimeError("Backend gloo does not support reduce_scatter"),
        ValueError("Connection closed by peer"),
    ],
)
def test_a_collective_that_was_called_wrongly_is_no_lost_connection(error: Exception) -> None:
    assert not of_connections(error)


class Watched:
    """A watch that finds nobody lost."""

    outlive_seconds = 0.0

    def __init__(self) -> None:
        self.waited = False
        self.reported: list[Verdict] = []

    def wait_for_verdict(self) -> None:
        self.waited = True

    def report(self, verdict: Verdict, words: str, after_seconds: float) -> Verdict:
        self.reported.append(verdict)
        return verdict


class Left(BaseException):
    pass


@pytest.fixture(autouse=True)
def no_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test before these, in the same process, may have stopped a run by a signal, which is still known."""
    monkeypatch.setattr(join, "stop_requested", lambda: False)


def failed_with(error: Exception, monkeypatch: pytest.MonkeyPatch) -> tuple[Watched, int, str]:
    watch = Watched()

    def leave(status: int, words: str = "", after_seconds: float = 0.0) -> None:
        raise Left(status, words)

    monkeypatch.setattr(join.ranks, "leave", leave)
    place = Place(1, 2, 1, 2, "127.0.0.1", 1, "torchrun", hosts_store=False)
    given: Any = watch
    with pytest.raises(Left) as caught:
        join._fail(error, Joining(place, "cpu", 300.0, tell), None, given)
    return watch, *caught.value.args


def test_where_nobody_is_lost_the_error_keeps_its_status_and_its_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, status, words = failed_with(RuntimeError("gloo: Connection closed by peer"), monkeypatch)
    assert watch.waited
    assert status == EXIT_OUR_BUG
    assert words.startswith("rank 1: ")
    assert "RuntimeError: gloo: Connection closed by peer" in words
    assert "this is a bug" in words


def test_a_bug_in_a_collective_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    watch, status, words = failed_with(RuntimeError("unsupported type for gloo"), monkeypatch)
    assert not watch.waited
    assert (status, "unsupported type" in words) == (EXIT_OUR_BUG, True)


@pytest.mark.parametrize("all_met", [False, True])
def test_ranks_that_train_hear_nothing_of_a_process_with_the_number_of_one(
    all_met: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(1, 2, 1, 2, "127.0.0.1", 1, "torchrun", hosts_store=False)
    ours, told = object(), list[object]()

    def meet(*_: object) -> None:
        raise RankTaken(place, "node", all_met)

    def fail(error: BaseException, joining: Joining, store: object, watch: object) -> None:
        told.append(store)
        raise Left

    monkeypatch.setattr(join, "connect", lambda *_: ours)
    monkeypatch.setattr(join, "meet", meet)
    monkeypatch.setattr(join, "_fail", fail)
    monkeypatch.setattr(join.log, "only_warnings", lambda _: None)
    with pytest.raises(Left):
        join.take_part(Joining(place, "cpu", 300.0, tell), lambda: None)
    assert told == [None if all_met else ours]


def test_a_stop_that_a_dead_rank_has_caused_is_no_saved_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun sends SIGTERM to the ranks that are left, and kills them when they wait."""
    monkeypatch.setattr(join, "stop_requested", lambda: True)
    watch, status, words = failed_with(RuntimeError("Connection closed by peer"), monkeypatch)
    assert not watch.waited
    assert status == EXIT_RANK_LOST
    assert words.startswith("rank 1: the run was not saved: the connection to another rank was lost")


def leaves_without_output() -> None:
    os.close(1)
    sys.stdout = None  # as Python has it in a process that a shell has started with >&-
    join.ranks.leave(3)


def test_a_rank_whose_standard_output_is_closed_leaves_with_its_status() -> None:
    with Command(does=leaves_without_output) as rank:
        assert (*rank.communicate(), rank.wait()) == ("", "", 3)
