"""Which rank is lost, by how long its heartbeat stood still for one that ran itself; who leaves, with which words."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import replace
from typing import Any, NoReturn

import pytest

from bertsmith.base.errors import EXIT_RANK_LOST
from bertsmith.base.ranks.places import Place
from bertsmith.base.ranks.store import VERDICT, serve
from bertsmith.base.ranks.verdict import Verdict, failed, silent, speaks
from bertsmith.base.ranks.watch import DONE, Stillness, Watch

PATIENCE = 120.0
# After which what is silent in these tests is taken for lost.
TIMEOUT = 5.0
PLACE = Place(0, 2, 0, 1, "127.0.0.1", 1, "torchrun", hosts_store=False)


class Left:
    """Stands for the end of a process: takes the words, and never returns."""

    def __init__(self) -> None:
        self.words: queue.Queue[tuple[int, str]] = queue.Queue()

    def __call__(self, status: int, words: str, after_seconds: float) -> NoReturn:
        self.words.put((status, words))
        threading.Event().wait()
        raise AssertionError

    def told(self) -> tuple[int, str]:
        return self.words.get(timeout=PATIENCE)


@pytest.fixture
def store() -> Any:
    made, _ = serve("127.0.0.1", PATIENCE, "run")
    made.set(VERDICT, "")
    for rank in range(2):
        made.set(f"beat/{rank}", "0")
    return made


def watch(store: Any, rank: int, timeout: float = TIMEOUT) -> tuple[Watch, Left]:
    left = Left()
    made = Watch(store, replace(PLACE, rank=rank), ["node-a", "node-b"], timeout, left)
    made.start()
    return made, left


def test_what_changes_is_alive_and_what_stands_still_is_counted() -> None:
    still = Stillness(most=2.0, now=0.0)
    assert still.look(1.0, {1: "a", 2: "a"}) == {1: 0.0, 2: 0.0}
    assert still.look(2.0, {1: "b", 2: "a"}) == {1: 0.0, 2: 1.0}
    assert still.look(3.5, {1: "b", 2: "a"}) == {1: 1.5, 2: 2.5}
    assert still.look(4.0, {1: "b", 2: "b"}) == {1: 2.0, 2: 0.0}


def test_time_in_which_the_one_that_looks_did_not_run_does_not_count() -> None:
    still = Stillness(most=2.0, now=0.0)
    still.look(1.0, {1: "a"})
    assert still.look(1001.0, {1: "a"}) == {1: 2.0}, "it was itself stopped for most of that"
    assert still.look(1002.0, {1: "b"}) == {1: 0.0}


def test_a_silent_rank_is_named_by_the_first_one_with_its_host(store: Any) -> None:
    _, left = watch(store, rank=0)
    status, words = left.told()
    assert status == EXIT_RANK_LOST
    assert words.startswith("rank 1 on node-b was not heard from for ")
    assert Verdict.read(store.get(VERDICT)).rank == 1, "the others find it in the store"


def test_a_silent_first_rank_is_named_by_the_others(store: Any) -> None:
    _, left = watch(store, rank=1)
    status, words = left.told()
    assert status == EXIT_RANK_LOST
    assert words.startswith("rank 1: rank 0 on node-a was not heard from for ")


def test_a_rank_that_is_done_is_not_missed(store: Any) -> None:
    second, second_left = watch(store, rank=1, timeout=10)
    second.finish()
    assert store.get("beat/1").decode() == DONE
    first, first_left = watch(store, rank=0)
    end = time.monotonic() + PATIENCE
    while first._answers < 20 and time.monotonic() < end:  # each 0.25 s or more after the one before
        time.sleep(0.05)
    assert first._answers >= 20, "which takes longer than a beat may stand still"
    assert first_left.words.empty(), "a rank may be done long before the first one"
    first.finish()
    assert first_left.words.empty()
    assert second_left.words.empty()


class GoneOnceDone:
    """A store whose host leaves as soon as the second rank is done, before it answers once more."""

    def __init__(self, store: Any) -> None:
        self._store = store

    def clone(self) -> GoneOnceDone:
        return GoneOnceDone(self._store.clone())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def multi_get(self, keys: list[str]) -> Any:
        if self._store.get("beat/1").decode() == DONE:
            raise RuntimeError("Connection reset by peer")
        return self._store.multi_get(keys)


def test_a_rank_that_is_done_does_not_miss_the_store_that_the_first_one_takes_along(store: Any) -> None:
    second, left = watch(GoneOnceDone(store), rank=1)
    second._finished.set()
    end = time.monotonic() + PATIENCE
    while second._threads[0].is_alive() and left.words.empty() and time.monotonic() < end:
        time.sleep(0.05)
    assert left.words.empty()
    assert store.get("beat/1").decode() == DONE
    second.finish()


def test_the_first_rank_stays_until_all_are_done(store: Any) -> None:
    first, left = watch(store, rank=0)
    first._finished.set()
    assert left.told()[1].startswith("rank 1 on node-b was not heard from"), "it waited for the other, which never came"


def test_the_reason_of_a_rank_that_fails_is_what_the_others_say(store: Any) -> None:
    (_, first_left), (second, second_left) = watch(store, rank=0, timeout=20), watch(store, rank=1, timeout=20)
    mine = failed(1, "node-b", ValueError("no such\nthing"), status=1)
    assert second.report(mine, "rank 1: trace") == mine
    assert first_left.told() == (1, "rank 1 on node-b failed: ValueError: no such thing; all ranks leave")
    later = failed(0, "node-a", KeyError("x"), status=2)
    assert second.report(later, "") == mine, "the first verdict stands"
    assert second_left.words.empty(), "it leaves by itself"


def test_a_rank_waits_for_what_the_first_one_says_of_the_same_error(store: Any) -> None:
    second, _ = watch(store, rank=1, timeout=600)
    said = failed(0, "node-a", ValueError("x"), status=2)
    store.compare_set(VERDICT, "", said.text())
    assert second.report(failed(1, "node-b", ValueError("x"), status=2), "", after_seconds=PATIENCE) == said


def test_a_store_that_is_gone_is_named_by_its_host() -> None:
    made, port = serve("127.0.0.1", PATIENCE, "run")
    made.set(VERDICT, "")
    made.set("beat/0", "0")
    _, left = watch(made, rank=1, timeout=600)
    del made
    # The watch holds connections to the store, and no longer the store itself.
    status, words = left.told()
    assert status == EXIT_RANK_LOST
    assert words.startswith("rank 1: rank 0 on node-a with the store of the ranks, 127.0.0.1:1, cannot be reached (")
    assert port


@pytest.fixture
def stuck(store: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[Watch, Left]:
    """The watch of the second rank, whose store does not answer any more."""
    second, left = Watch(store, replace(PLACE, rank=1), ["node-a", "node-b"], TIMEOUT, Left()), Left()
    monkeypatch.setattr(second, "_leave", left)

    class Stuck:
        def set(self, *_: Any) -> None:
            time.sleep(PATIENCE)

    monkeypatch.setattr(second, "_store", Stuck())
    return second, left


def test_a_store_that_does_not_answer_is_noticed_by_the_second_thread(stuck: tuple[Watch, Left]) -> None:
    second, left = stuck
    second.start()
    assert "127.0.0.1:1, has not answered for " in left.told()[1]


def test_who_leaves_with_its_own_error_still_says_it_where_the_store_does_not_answer(
    stuck: tuple[Watch, Left],
) -> None:
    second, left = stuck
    second._own_words = "rank 1: my error"
    second.start()
    assert left.told()[1].startswith("rank 1: my error\nrank 0 on node-a with the store")


def test_ranks_leave_with_what_started_them(store: Any) -> None:
    left = Left()
    Watch(store, PLACE, ["node-a", "node-b"], TIMEOUT, left, orphaned=lambda: True).start()
    assert left.told() == (EXIT_RANK_LOST, "the process that started the ranks is gone; all ranks leave")


@pytest.mark.parametrize("looks", [0, 2])
def test_a_store_that_goes_with_the_launcher_is_not_the_first_rank_s_fault(looks: int) -> None:
    """Its connections close before the launcher is gone; nothing false is said in between."""
    left, seen = Left(), []

    def orphaned() -> bool:
        seen.append(True)
        return len(seen) > looks

    made, _ = serve("127.0.0.1", PATIENCE, "run")
    watched = Watch(made, PLACE, ["node-a", "node-b"], 600.0, left, orphaned)
    threading.Thread(target=watched._lost, args=["cannot be reached"], daemon=True).start()
    assert left.told() == (EXIT_RANK_LOST, "the process that started the ranks is gone; all ranks leave")


@pytest.mark.parametrize(
    ("at_fault", "told", "speaking"),
    [
        (5, False, [0, 4]),
        (4, False, [0, 5]),
        (0, False, [1, 4]),
        (5, True, [0]),
        (0, True, [4]),
    ],
)
def test_one_rank_of_each_host_speaks(at_fault: int, told: bool, speaking: list[int]) -> None:
    """Two hosts of four ranks. A host where the failed rank has printed its error needs no more."""
    verdict = replace(silent(at_fault, "node", 9.0), told=told)
    assert [rank for rank in range(8) if rank != at_fault and speaks(rank, ["a"] * 4 + ["b"] * 4, verdict)] == speaking


def test_one_rank_of_each_host_speaks_where_hosts_take_turns() -> None:
    """As with `srun -m cyclic`: ranks of a host are not neighbours."""
    hosts, verdict = ["a", "b"] * 4, silent(1, "b", 9.0)
    assert [rank for rank in range(8) if rank != 1 and speaks(rank, hosts, verdict)] == [0, 3]
    told = replace(verdict, told=True)
    assert [rank for rank in range(8) if rank != 1 and speaks(rank, hosts, told)] == [0]


def test_a_verdict_passes_through_the_store_whole() -> None:
    verdict = failed(3, "node-é", RuntimeError("a\n  b " + "x" * 999), status=1)
    assert Verdict.read(verdict.text().encode()) == verdict
    assert len(verdict.what) < 600
    assert Verdict.read(b"") is None
