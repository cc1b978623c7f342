"""Epochs made ahead, by processes that may be killed: the same index, built once, and waited for by nobody for ever."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bertsmith.batches import maker, steps
from bertsmith.batches.epoch_files import EpochFiles
from bertsmith.batches.epochs import Closing
from bertsmith.batches.loader import Loader
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.order import Order
from bertsmith.batches.shares import Share
from bertsmith.batches.steps import Step, StepBuilder
from bertsmith.corpus.shards import Shard
from made_ahead import BATCH, PATIENCE, STEPS, away, only_child, order, wait_for
from made_shards import MemorySource, make_source


def loader_of(ours: Order, workers: int = 0) -> Loader:
    return Loader(StepBuilder(ours, BATCH, MaskingSettings(), 700), start_step=0, stop_step=STEPS, workers=workers)


def run(ours: Order, workers: int = 0, during: Callable[[Step], None] = lambda step: None) -> list[list[list[int]]]:
    """The ids of every micro-batch of every step."""
    found = []
    with loader_of(ours, workers) as loader:
        for step in loader:
            during(step)
            found.append([batch.input_ids.tolist() for batch in step.micro_batches])
    return found


@pytest.fixture(scope="module")
def expected() -> list[list[list[int]]]:
    plain = order(None)
    assert plain.epoch_start(3) < STEPS * BATCH, "the run has more than three epochs"
    return run(plain)


@pytest.mark.parametrize("workers", [0, 2])
def test_only_the_first_index_is_waited_for_and_all_are_kept_to_the_byte(
    tmp_path: Path, expected: list[list[list[int]]], workers: int
) -> None:
    ours = order(tmp_path / "ours", share=Share(tmp_path / "ours"))
    assert run(ours, workers) == expected
    assert ours.ahead is not None
    assert ours.ahead.in_foreground == [0]
    plain = order(tmp_path / "plain")
    sizes = [plain.epoch(number).size for number in range(4)]
    assert sum(sizes[:3]) < STEPS * BATCH <= sum(sizes)
    kept = {path.name: path.read_bytes() for path in (tmp_path / "ours").glob("[!.]*")}
    assert kept == {path.name: path.read_bytes() for path in (tmp_path / "plain").iterdir()}
    assert multiprocessing.active_children() == []


def test_no_process_is_started_for_a_run_of_one_epoch(tmp_path: Path) -> None:
    ours = order(tmp_path)
    ours.build_ahead(Share(tmp_path), end=ours.epoch_start(1))
    ours.reach(0, BATCH)
    assert multiprocessing.active_children() == []
    assert [path.suffix for path in tmp_path.glob("[!.]*")] == [".npy"]


def test_processes_that_build_batches_draw_no_pairs(tmp_path: Path) -> None:
    """What the first process drew is read by the others, whose shards have tokens and no sentences here."""
    source = TokensAlone(make_source().splits, home=os.getpid())
    ours = order(tmp_path, source)
    size = order(None).epoch(0).size
    ours.build_ahead(Share(tmp_path), end=size)
    builder = StepBuilder(ours, BATCH, MaskingSettings(), 700)
    with Loader(builder, start_step=0, stop_step=size // BATCH, workers=2) as loader:
        assert len(list(loader)) == size // BATCH


@dataclass
class TokensAlone(MemorySource):
    """In other processes than its own, shards cannot be cut: they seem to have no document."""

    home: int = 0

    def open_shard(self, split: str, index: int) -> Shard:
        shard = super().open_shard(split, index)
        if os.getpid() == self.home:
            return shard
        return Shard(shard.tokens, shard.sentence_offsets, np.zeros(1, np.int64))


def test_a_killed_process_is_said_and_another_one_makes_the_index(
    tmp_path: Path, expected: list[list[list[int]]], caplog: pytest.LogCaptureFixture
) -> None:
    ours = order(tmp_path / "order", away(tmp_path, "wait"), Share(tmp_path / "order"))

    def kill(step: Step) -> None:
        if step.number == 0:
            wait_for((tmp_path / "gate-reached").exists)
            os.kill(only_child(), signal.SIGKILL)
            (tmp_path / "gate").touch()

    assert run(ours, during=kill) == expected
    assert "ended with status -9; another one is started" in caplog.text
    assert ours.ahead is not None
    assert ours.ahead.in_foreground == [0]


@pytest.mark.parametrize(("what", "said"), [("end", "was killed 3 times"), ("fail", "a bug of ours")])
def test_what_no_process_can_do_is_said_and_done_when_it_is_needed(
    tmp_path: Path, expected: list[list[list[int]]], what: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    ours = order(tmp_path / "order", away(tmp_path, what), Share(tmp_path / "order"))
    assert run(ours) == expected
    assert caplog.text.count("cannot be built ahead") == 1
    assert said in caplog.text
    assert "did not grow" not in caplog.text, "the rank waits for nothing that will not come"
    assert ours.ahead is not None
    assert ours.ahead.in_foreground == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "why", [BlockingIOError(11, "Resource temporarily unavailable"), AssertionError("daemonic processes have none")]
)
def test_where_no_process_can_be_started_the_run_goes_on_and_ends_as_usual(
    tmp_path: Path,
    expected: list[list[list[int]]],
    why: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refused(*_: object) -> None:
        raise why

    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", refused)
    assert run(order(tmp_path / "order", share=Share(tmp_path / "order"))) == expected
    assert caplog.text.count("no process for it could be started") == 1


def test_signals_to_the_whole_group_leave_the_process_alone_until_the_run_ends(
    tmp_path: Path, expected: list[list[list[int]]], caplog: pytest.LogCaptureFixture
) -> None:
    ours = order(tmp_path / "order", away(tmp_path, "wait"), Share(tmp_path / "order"))

    def signals(step: Step) -> None:
        if step.number == 0:
            wait_for((tmp_path / "gate-reached").exists)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
                os.kill(only_child(), number)
            (tmp_path / "gate").touch()

    assert run(ours, during=signals) == expected
    assert "ended with status" not in caplog.text


def test_a_rank_makes_up_for_others_that_do_not_do_their_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(maker, "PATIENCE_SECONDS", 0.2)
    plain = order(None)
    for place in (0, 1):
        ours = order(tmp_path / str(place), share=Share(tmp_path / str(place), place, places=2))
        assert np.array_equal(ours.epoch(0).lengths, plain.epoch(0).lengths)
        assert "did not grow for 0.2 s" in caplog.text
        ours.close()
        caplog.clear()


def test_two_ranks_draw_every_shard_once(tmp_path: Path) -> None:
    sources = [make_source(shards=5), make_source(shards=5)]
    both = [order(tmp_path, each, Share(tmp_path, place, 2)) for place, each in enumerate(sources)]
    first, second = both
    assert second.ahead is not None
    assert second.ahead._drawn_share(0)
    assert first.epoch(0).size == order(None, make_source(shards=5)).epoch(0).size
    opened = [len(each.opened) for each in sources]
    assert opened == [5, 2], "the first one read what the second one drew, and drew three"
    assert np.array_equal(second.epoch(0).lengths, first.epoch(0).lengths)
    assert [len(each.opened) for each in sources] == opened, "the index is read from its file"


def test_a_full_disk_is_said_and_the_run_goes_on(
    tmp_path: Path, expected: list[list[list[int]]], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    ours = order(tmp_path / "order", away(tmp_path, "fail"), Share(tmp_path / "order"))
    assert run(ours) == expected
    assert "the instances of epoch 0 cannot be kept, so they are held in memory" in caplog.text
    assert caplog.text.count("cannot be kept") == 4, "once an epoch"
    assert not [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and path.name != ".lock" and path.parent.name != tmp_path.name
    ]


def test_a_damaged_index_is_made_again(
    tmp_path: Path, expected: list[list[list[int]]], caplog: pytest.LogCaptureFixture
) -> None:
    plain = order(tmp_path / "order")
    for number in range(3):
        plain.epoch(number)
    paths = sorted((tmp_path / "order").iterdir())
    contents = [path.read_bytes() for path in paths]
    for path in paths:
        path.write_bytes(path.read_bytes()[:-9])
    assert run(order(tmp_path / "order", share=Share(tmp_path / "order"))) == expected
    assert caplog.text.count("is damaged and will be rebuilt") == 3
    assert [path.read_bytes() for path in paths] == contents


def test_a_run_that_ends_leaves_what_another_one_with_the_same_order_reads(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As in a sweep of learning rates: one run is behind, another comes to its third epoch, and to its end."""
    ours, theirs = (order(tmp_path, share=Share(tmp_path)) for _ in range(2))
    assert ours.epochs.files is not None
    assert ours.ahead is not None
    assert theirs.ahead is not None
    ours.epoch(0)
    assert ours.epochs.files.shards_there(0)
    ours.ahead.started(0, 0, STEPS * BATCH)
    theirs.ahead.started(2, 0, 1)
    theirs.close(finished=True)
    assert ours.epochs.files.are_whole(0), "the run that is behind still reads them"
    ours.close(finished=False)
    last = order(tmp_path, share=Share(tmp_path))
    assert last.ahead is not None
    last.epoch(1)
    last.ahead.started(1, 0, STEPS * BATCH)
    assert ours.epochs.files.are_whole(0), "steps that are being built may have some"
    last.ahead.started(2, 0, STEPS * BATCH)
    assert not ours.epochs.files.shards_there(0)
    assert ours.epochs.files.are_whole(1)
    last.close(finished=True)
    assert not ours.epochs.files.shards_there(1), "the last one removes them"
    assert "may remove them" not in caplog.text


@pytest.mark.parametrize("place", [0, 1])
def test_shards_that_vanish_while_the_index_is_waited_for_are_drawn_again(
    tmp_path: Path, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of the leader at once, those of the others when nothing new comes from them."""
    monkeypatch.setattr(maker, "PATIENCE_SECONDS", 0.2 if place else PATIENCE)
    first, second = (order(tmp_path, share=Share(tmp_path, each, 2)) for each in (0, 1))
    files = first.epochs.files
    assert files is not None
    assert second.ahead is not None
    if not place:
        assert second.ahead._drawn_share(0)
    looks = 0

    def look(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks > 1 and not place and not files.index_path(0).exists() and looks < 4:
            for path in files.folder.glob("epoch-0-*/*.npy"):
                if int(path.stem) in first_share:
                    path.unlink()
        time.sleep(seconds)
        assert looks < 30

    first_share = set(range(files.shards)) - files.shards_there(0)
    assert maker._made(first.epochs, Share(tmp_path, 0, 2), 0, look) == ""
    index = files.read_index(first.epochs.stream(0))
    assert index is not None
    assert np.array_equal(index.lengths, order(None).epoch(0).lengths)


def test_only_the_leader_lists_the_folder_while_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = order(tmp_path, share=Share(tmp_path, 1, 2))
    listed, looked, read_index, shards_there = [], [], EpochFiles.read_index, EpochFiles.shards_there

    def reading(self: EpochFiles, stream: Any) -> Any:
        looked.append(stream)
        if len(looked) == 10:
            self.write_index(order(None).epoch(0))
        return read_index(self, stream)

    monkeypatch.setattr(EpochFiles, "read_index", reading)
    monkeypatch.setattr(EpochFiles, "shards_there", lambda *given: (listed.append(given), shards_there(*given))[1])
    assert ours.epoch(0).size
    assert len(looked) == 10
    assert len(listed) == 2, "once for what is missing of its share, and once for how many there are"


def test_what_a_run_that_ended_has_removed_is_made_ahead_again(tmp_path: Path) -> None:
    """Only the indices are left; without instances every process that builds batches would draw them for itself."""
    plain = order(tmp_path / "order")
    for epoch in (0, 1):
        plain.epoch(epoch)
    ours = order(tmp_path / "order", away(tmp_path, "wait"), Share(tmp_path / "order"))
    ours.reach(0, BATCH)
    assert ours.ahead is not None
    assert ours.ahead._maker.is_at(1)
    (tmp_path / "gate").touch()
    ours.close()


def test_an_order_that_is_closed_draws_no_further_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = order(tmp_path, share=Share(tmp_path))
    files, drawn = ours.epochs.files, ours.epochs.drawn
    monkeypatch.setattr(ours.epochs, "drawn", lambda *given: (ours.stop_waiting(), drawn(*given))[1])
    with pytest.raises(Closing):
        ours.epoch(0)
    assert files is not None
    assert len(files.shards_there(0)) == 1


def test_a_loader_that_is_closed_does_not_wait_for_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rank of two draws nothing, so the second index would be waited for as long as the patience is."""
    monkeypatch.setattr(maker, "PATIENCE_SECONDS", 60.0)
    first = order(tmp_path).epoch(0)
    ours = order(tmp_path, share=Share(tmp_path, 1, 2))
    assert ours.ahead is not None
    waits, awaited, ended = threading.Event(), ours.ahead._awaited, []

    def awaiting(epoch: int) -> Any:
        waits.set()
        try:
            return awaited(epoch)
        except Closing:
            ended.append(epoch)
            raise

    ours.ahead._awaited = awaiting  # type: ignore[method-assign]
    with loader_of(ours) as loader:
        for step in loader:
            if step.number == first.size // BATCH - 2:
                break
        assert waits.wait(PATIENCE), "two steps further, the thread needs the second epoch"
    assert ended == [1]


def test_a_loader_that_is_closed_does_not_finish_the_step_in_the_making(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of 65,536 sequences takes seconds to build, for which a signal would wait."""
    ours = order(tmp_path, share=Share(tmp_path))
    assert ours.ahead is not None
    closing, build, taken, begun, after = (
        ours.epochs.closing,
        steps.build_batch,
        threading.Event(),
        threading.Event(),
        [],
    )

    def building(*given: Any) -> Any:
        if taken.is_set():
            begun.set()
            wait_for(closing.is_set)
            after.append(1)
        return build(*given)

    monkeypatch.setattr(steps, "build_batch", building)
    with loader_of(ours) as loader:
        assert len(next(iter(loader)).micro_batches) > 2
        taken.set()
        assert begun.wait(PATIENCE)
    assert after == [1], "the micro-batch that was being built"
    assert ours.epochs.files is not None
    assert ours.epochs.files.shards_there(0), "a run that resumes reads them"
