"""Ranks that wait for each other: only those of one run, no longer than what holds the store lives, all on one kind of
device and each on a GPU of its own. What a restart may get over ends with 75."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch.distributed as dist

from bertsmith.base.errors import EXIT_RANK_LOST, BertsmithError, RankLost
from bertsmith.base.ranks import store as stores
from bertsmith.base.ranks.meeting import AllLeave, Arrival, Patience, check_alike, meet
from bertsmith.base.ranks.places import Place
from bertsmith.base.ranks.store import VERDICT, RankTaken, connect
from bertsmith.base.ranks.verdict import failed
from bertsmith.cli.ending import tell
from made_commands import Command

PATIENCE = 120.0
CPU = Arrival("node", "cpu")


def never() -> bool:
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def place() -> Place:
    return Place(0, 2, 0, 1, "127.0.0.1", free_port(), "srun", hosts_store=True, run="77.0")


def waiting(work: Callable[[], Any]) -> queue.Queue[Any]:
    """What comes of `work` in a thread: its result, or its error."""
    results: queue.Queue[Any] = queue.Queue()

    def run() -> None:
        try:
            results.put(work())
        except Exception as error:
            results.put(error)

    threading.Thread(target=run, daemon=True).start()
    return results


def second(first: Place) -> Place:
    return replace(first, rank=1, local_rank=1, hosts_store=False)


def come(place: Place, join: float = PATIENCE, orphaned: Callable[[], bool] = never, mine: Arrival = CPU) -> Any:
    return meet(connect(place, join, orphaned), place, mine, Patience(join, PATIENCE, orphaned))


def test_ranks_of_one_run_meet(place: Place) -> None:
    ours = connect(place, PATIENCE, never)  # held, as a process holds it: the store ends with it
    first = waiting(lambda: meet(ours, place, replace(CPU, host="a"), Patience(PATIENCE, PATIENCE, never)))
    assert come(second(place), mine=replace(CPU, host="b")) == ["a", "b"]
    assert first.get(timeout=PATIENCE) == ["a", "b"]


def test_a_second_process_with_a_rank_s_number_is_refused(place: Place) -> None:
    """Before all have met, those that wait are to hear of it; afterwards they go on."""
    three = replace(place, world_size=3)
    ours = connect(three, PATIENCE, never)
    one = waiting(lambda: meet(ours, three, CPU, Patience(PATIENCE, PATIENCE, never)))
    two = waiting(lambda: come(second(three)))
    while not ours.clone().check(["host/0", "host/1"]):
        time.sleep(0.05)
    with pytest.raises(RankTaken, match="another process has come as rank 1 already, on node") as early:
        come(second(three), mine=replace(CPU, host="other"))
    assert not early.value.all_met
    assert tell(early.value)[0] == 2
    assert come(replace(second(three), rank=2)) == ["node"] * 3
    assert one.get(timeout=PATIENCE) == two.get(timeout=PATIENCE) == ["node"] * 3
    with pytest.raises(RankTaken) as late:
        come(second(three))
    assert late.value.all_met


def comes_second(place: Place) -> None:
    try:
        connect(place, 60, never)
    except RankTaken as error:
        print(error.what)


def test_a_second_first_rank_leaves_the_run_alone(place: Place) -> None:
    """In a process of its own, because a process shares its stores."""
    ours = connect(place, PATIENCE, never)
    first = waiting(lambda: meet(ours, place, CPU, Patience(PATIENCE, PATIENCE, never)))
    while not ours.clone().check(["host/0"]):
        time.sleep(0.05)
    with Command(does=partial(comes_second, place)) as twin:
        assert twin.communicate() == ("another process has come as rank 0 already\n", "")
    assert come(second(place)) == ["node", "node"]
    assert first.get(timeout=PATIENCE) == ["node", "node"]


def waits_for_the_first(place: Place) -> None:
    stores._TRY_SECONDS = 0.2  # after which PyTorch's own attempt would give up, and say so
    print("waits", flush=True)
    connect(place, 60, never)
    print("there", flush=True)


def test_a_rank_writes_nothing_while_it_waits_for_a_late_first_one(place: Place) -> None:
    with Command(does=partial(waits_for_the_first, second(place))) as rank:
        assert rank.stdout.readline() == "waits\n"
        time.sleep(0.6)
        assert rank.poll() is None
        ours = connect(place, PATIENCE, never)
        assert rank.communicate() == ("there\n", "")
        assert rank.wait() == 0
    del ours


def test_ranks_of_two_jobs_at_one_port_stay_apart(place: Place) -> None:
    """The other job's rank neither counts as ours, nor do we hear of its end."""
    ours = connect(place, PATIENCE, never)
    first = waiting(lambda: meet(ours, place, CPU, Patience(PATIENCE, PATIENCE, never)))
    stranger = replace(second(place), run="78.0")
    with pytest.raises(RankLost, match=r"1 of 2 ranks did not come within 1\.0 s: 0"):
        come(stranger, join=1.0)
    theirs = connect(stranger, PATIENCE, never)
    theirs.compare_set(VERDICT, "", failed(1, "b", ValueError("of the other job"), 1).text())
    assert come(second(place)) == ["node", "node"]
    assert first.get(timeout=PATIENCE) == ["node", "node"]


def holds_a_store(port: int) -> None:
    store = dist.TCPStore("127.0.0.1", port, None, True, wait_for_workers=False)
    print("ready", flush=True)
    time.sleep(600)
    del store


def test_a_port_in_use_may_be_free_the_next_time_and_our_own_ranks_are_told(place: Place) -> None:
    with Command(does=partial(holds_a_store, place.port)) as other:
        assert other.stdout.readline() == "ready\n"
        rank = waiting(lambda: come(second(place)))
        with pytest.raises(RankLost, match="the ranks could not meet") as caught:
            connect(place, PATIENCE, never)
        status, said = tell(caught.value)
        assert status == EXIT_RANK_LOST
        assert f"127.0.0.1:{place.port}" in said
        news = rank.get(timeout=PATIENCE)
        assert isinstance(news, AllLeave)
        assert news.verdict.status == EXIT_RANK_LOST
        assert "could not open" in news.verdict.what


def comes_first(place: Place) -> None:
    store = connect(place, 60, never)
    time.sleep(600)
    del store


def test_a_holder_of_the_store_that_is_killed_ends_who_waits(place: Place) -> None:
    with Command(does=partial(comes_first, place)) as holder:
        joined = connect(second(place), PATIENCE, never)
        rank = waiting(lambda: meet(joined, second(place), CPU, Patience(PATIENCE, PATIENCE, never)))
        while not joined.clone().check(["host/1"]):
            time.sleep(0.05)
        holder.kill()
        lost = rank.get(timeout=PATIENCE)
    assert isinstance(lost, RankLost)
    assert "the connection to the store of the ranks was lost" in str(lost)
    assert tell(lost)[0] == EXIT_RANK_LOST


def test_a_store_that_does_not_answer_is_given_up() -> None:
    with pytest.raises(RankLost, match="has not answered for"):
        stores.asked(threading.Event().wait, 0.2)


def test_an_error_of_our_own_is_not_taken_for_a_silent_store() -> None:
    nothing: list[int] = []
    with pytest.raises(IndexError):
        stores.asked(lambda: nothing[5], PATIENCE)


def test_a_rank_without_its_launcher_waits_for_nobody(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "_TRY_SECONDS", 0.5)
    with pytest.raises(RankLost, match="could not meet"):
        come(second(place), orphaned=lambda: True)
    with pytest.raises(RankLost, match="the process that started the ranks is gone"):
        come(place, orphaned=lambda: True)


def test_a_verdict_before_all_ranks_came_ends_who_waits(place: Place) -> None:
    store = connect(place, PATIENCE, never)
    said = failed(1, "b", ValueError("no GPU"), 2)
    store.compare_set(VERDICT, "", said.text())
    with pytest.raises(AllLeave) as caught:
        meet(store, place, CPU, Patience(PATIENCE, PATIENCE, never))
    assert (caught.value.verdict, caught.value.hosts) == (said, ["node", ""])


def test_a_host_without_its_gpu_is_named_by_every_rank(place: Place) -> None:
    first = waiting(lambda: come(place, mine=Arrival("a", "cuda", "gpu-1")))
    with pytest.raises(BertsmithError, match="rank 1 would train on cpu, and rank 0 on cuda") as caught:
        come(second(place), mine=Arrival("b", "cpu"))
    assert caught.value.where == "b; rank 0 is on a"
    refused = first.get(timeout=PATIENCE)
    assert str(refused) == str(caught.value)
    assert tell(refused)[0] == 2


def test_two_ranks_on_one_gpu_are_refused() -> None:
    check_alike([CPU, CPU])
    check_alike([Arrival("a", "cuda", "1"), Arrival("a", "cuda", "2")])
    with pytest.raises(BertsmithError, match="ranks 0, 2 have the same GPU") as caught:
        check_alike([Arrival("a", "cuda", "1"), Arrival("a", "cuda", "2"), Arrival("a", "cuda", "1")])
    assert "LOCAL_RANK" in caught.value.fix
