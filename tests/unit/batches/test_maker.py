"""The process beside a rank: what it was asked for is made however often it is killed, and it leaves nothing behind."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest

from bertsmith.batches import maker
from bertsmith.batches.maker import Maker
from bertsmith.batches.order import Order
from bertsmith.batches.shares import Share
from made_ahead import BATCH, PATIENCE, away, only_child, order, wait_for


def held_up(tmp_path: Path) -> Order:
    """An order whose process draws nothing before the file `gate` is there."""
    return order(tmp_path / "order", away(tmp_path, "wait"), Share(tmp_path / "order"))


def listeners() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if each.name == "index ahead"]


def test_all_that_killed_processes_were_asked_for_is_made_by_the_next(tmp_path: Path) -> None:
    """One is killed in the midst of two epochs, another while it has nothing to do."""
    ours = held_up(tmp_path)
    files = ours.epochs.files
    assert files is not None
    made = Maker(ours.epochs, Share(tmp_path / "order"))
    for epoch in (0, 1):
        made.ask_for(epoch)
    wait_for((tmp_path / "gate-reached").exists)
    os.kill(only_child(), signal.SIGKILL)
    (tmp_path / "gate").touch()
    wait_for(lambda: not made.is_at(0) and not made.is_at(1))
    assert files.are_whole(0)
    assert files.are_whole(1)
    os.kill(only_child(), signal.SIGKILL)
    for each in listeners():
        each.join(PATIENCE)
    made.ask_for(2)
    wait_for(lambda: not made.is_at(2))
    assert files.are_whole(2)
    made.close()
    made.ask_for(3)
    assert not made.is_at(3), "nobody may wait for what is closed"


def test_closing_ends_a_process_that_does_not_come_to_an_end_and_starts_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maker, "_LEAVE_SECONDS", 0.1)
    ours = held_up(tmp_path)
    ours.reach(0, BATCH)
    wait_for((tmp_path / "gate-reached").exists)
    listening = listeners()
    ours.close()
    for each in listening:
        each.join(PATIENCE)
    assert multiprocessing.active_children() == []
    assert caplog.text == ""


def test_a_process_whose_rank_has_left_draws_no_further_shard(tmp_path: Path) -> None:
    epochs, looks = order(tmp_path).epochs, []

    def look(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise EOFError

    with pytest.raises(EOFError):
        maker._made(epochs, Share(tmp_path), 0, look)
    assert epochs.files is not None
    assert len(epochs.files.shards_there(0)) == 1


def test_a_process_whose_rank_has_left_waits_for_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maker, "PATIENCE_SECONDS", 0.2)

    def look(seconds: float) -> None:
        if seconds:
            raise EOFError

    with pytest.raises(EOFError):
        maker._made(order(tmp_path).epochs, Share(tmp_path, 0, 2), 0, look)
