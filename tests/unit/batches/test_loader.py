"""The loader: ahead of its use, in order, and gone when it is closed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.base.locks import alone_in
from bertsmith.batches import builders
from bertsmith.batches.builders import BuilderProcesses
from bertsmith.batches.epochs import Epochs
from bertsmith.batches.loader import Loader, WaitFor, await_index
from bertsmith.batches.masking import MaskingSettings
from bertsmith.batches.order import Order
from bertsmith.batches.shares import Share
from bertsmith.batches.steps import StepBuilder
from bertsmith.corpus.shards import Shard
from made_ahead import away, order, wait_for
from made_shards import MemorySource, make_source


@dataclass
class BrokenSource(MemorySource):
    """Shards that cannot be read in another process than the one they were made in, or nowhere."""

    home: int = 0
    damaged: bool = True

    def open_shard(self, split: str, index: int) -> Shard:
        if os.getpid() == self.home:
            return super().open_shard(split, index)
        if self.damaged:
            raise BertsmithError("shard 1 is damaged", "corpus/train/00001", "prepare it again")
        raise ZeroDivisionError("a bug of ours")


@dataclass
class NotedSource(MemorySource):
    """Has a file in `folder` for each process that has read a shard."""

    folder: str = ""

    def open_shard(self, split: str, index: int) -> Shard:
        Path(self.folder, str(os.getpid())).touch()
        return super().open_shard(split, index)


def loader(
    source: MemorySource | None = None,
    workers: int = 0,
    steps: tuple[int, int] = (0, 6),
    masking: MaskingSettings | None = None,
    wait_for: WaitFor | None = None,
) -> Loader:
    ours = Order(Epochs(source or make_source(), seed=1, phase=1, sequence_length=64))
    builder = StepBuilder(ours, 20, masking or MaskingSettings(), 400)
    return Loader(builder, start_step=steps[0], stop_step=steps[1], workers=workers, wait_for=wait_for)


def wait_out(ready: Callable[[float], bool]) -> None:
    while not ready(0.01):
        pass


def batch_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("batches")]


def test_steps_come_once_each_and_in_order() -> None:
    with loader(steps=(3, 9)) as steps:
        assert [step.number for step in steps] == [3, 4, 5, 6, 7, 8]
    assert batch_threads() == []


def test_a_process_hides_the_words_that_a_thread_hides_in_any_run_of_steps() -> None:
    masking = MaskingSettings(rate=0.4, whole_words=True, final_rate=0.1, run_steps=6)
    found = []
    for workers, steps in ((0, (0, 6)), (1, (0, 6)), (0, (3, 6))):
        with loader(None, workers, steps, masking) as given:
            found.append([[each.masked_positions.tolist() for each in step.micro_batches] for step in given])
    assert found[0] == found[1]
    assert found[0][3:] == found[2]


def test_no_step_is_no_work() -> None:
    with loader(steps=(4, 4)) as steps:
        assert list(steps) == []


def test_a_loader_that_gave_no_step_leaves_the_order_to_others(tmp_path: Path) -> None:
    ours = Order(Epochs(make_source(), seed=1, phase=1, sequence_length=64, cache_folder=tmp_path))
    ours.build_ahead(Share(tmp_path), end=120)
    with Loader(StepBuilder(ours, 20, MaskingSettings(), 400), start_step=0, stop_step=6):
        pass
    assert ours.epochs.files is not None
    with alone_in(ours.epochs.files.lock_folder) as alone:
        assert alone


def test_waiting_is_measured_and_work_done_meanwhile_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that moves by a second each time it is read, and by as much as the work takes."""
    now = [0.0]

    def clock() -> float:
        now[0] += 1
        return now[0]

    monkeypatch.setattr("bertsmith.batches.loader.time", SimpleNamespace(perf_counter=clock))
    with loader(steps=(0, 4)) as steps:
        next(iter(steps))
        assert steps.waited_seconds == 1
        now[0] += 100
        next(iter(steps))
        assert steps.waited_seconds == 2


def test_indices_are_waited_for_before_the_first_step_and_between_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks wait together, and none for an epoch that it takes no step of."""
    reached, reach = [], StepBuilder.reach
    monkeypatch.setattr(StepBuilder, "reach", lambda builder, step: (reached.append(step), reach(builder, step))[1])
    with loader(steps=(0, 60)) as steps:
        ends = [step.number for step in steps if step.ends_epoch]
    assert len(ends) > 2
    with loader(steps=(1, ends[2] + 1), wait_for=wait_out) as steps:
        assert len(list(steps)) == ends[2]
    with loader(steps=(4, 4), wait_for=wait_out) as steps:
        assert list(steps) == []
    assert reached == [1, ends[0] + 1, ends[1] + 1]


def test_an_index_that_cannot_be_made_is_raised_to_who_waits_for_it() -> None:
    told = []

    def waiting(ready: Callable[[float], bool]) -> None:
        with pytest.raises(BertsmithError, match="shard 1 is damaged") as caught:
            wait_out(ready)
        told.append(caught.value)
        raise caught.value

    source = BrokenSource(make_source().splits, home=-1)
    with loader(source, wait_for=waiting) as steps, pytest.raises(BertsmithError) as raised:
        next(iter(steps))
    assert told == [raised.value]


def test_a_stop_while_an_index_is_waited_for_ends_the_wait(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The other rank of two draws nothing, so the index would be waited for as long as the patience is."""
    ours = Order(Epochs(make_source(), seed=1, phase=1, sequence_length=64, cache_folder=tmp_path))
    ours.build_ahead(Share(tmp_path, 1, 2), end=120)

    def stopped(ready: Callable[[float], bool]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await_index(ours, lambda: ours.epoch(0), stopped)
    ours.close()
    assert "did not grow" not in caplog.text


@pytest.mark.parametrize("workers", [0, 1])
def test_closing_early_ends_the_thread(workers: int) -> None:
    with loader(workers=workers, steps=(0, 1000)) as steps:
        next(iter(steps))
        assert batch_threads()
    assert batch_threads() == []
    assert list(steps) == []


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_the_thread_is_raised_where_the_step_would_come(workers: int) -> None:
    source = BrokenSource(make_source().splits, home=-1)
    with loader(source, workers) as steps, pytest.raises(BertsmithError, match="shard 1 is damaged"):
        next(iter(steps))
    assert batch_threads() == []


def test_an_error_in_a_process_keeps_its_kind_and_its_cause() -> None:
    source = BrokenSource(make_source().splits, home=os.getpid())
    with loader(source, workers=1) as steps, pytest.raises(BertsmithError, match="shard 1 is damaged") as caught:
        next(iter(steps))
    assert caught.value.fix == "prepare it again"
    assert "open_shard" in str(caught.value.__cause__)
    assert multiprocessing.active_children() == []


def test_a_bug_in_a_process_names_the_step_and_its_cause() -> None:
    source = BrokenSource(make_source().splits, home=os.getpid(), damaged=False)
    with loader(source, workers=1, steps=(2, 4)) as steps, pytest.raises(RuntimeError, match="step 2") as caught:
        next(iter(steps))
    assert "a bug of ours" in str(caught.value)
    assert "open_shard" in str(caught.value.__cause__)


def test_processes_outlive_a_signal_to_the_whole_group_until_they_are_closed() -> None:
    with loader(workers=1, steps=(0, 8)) as steps:
        iterator = iter(steps)
        assert next(iterator).number == 0
        (child,) = multiprocessing.active_children()
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT):
            os.kill(child.pid or 0, number)
        assert [step.number for step in iterator] == [1, 2, 3, 4, 5, 6, 7]
    assert not child.is_alive()
    assert child.exitcode == 0


def test_a_killed_process_is_named_and_closing_early_ends_the_others() -> None:
    with loader(workers=2, steps=(0, 1000)) as steps:
        iterator = iter(steps)
        next(iterator)
        children = multiprocessing.active_children()
        assert len(children) == 2
        os.kill(children[0].pid or 0, signal.SIGKILL)
        with pytest.raises(BertsmithError, match="a process that builds batches was killed"):
            for _ in iterator:
                pass
    assert multiprocessing.active_children() == []


def test_processes_take_turns(tmp_path: Path) -> None:
    source = NotedSource(make_source().splits, folder=str(tmp_path))
    with loader(source, workers=2) as steps:
        iterator = iter(steps)
        next(iterator)
        children = {str(each.pid) for each in multiprocessing.active_children()}
        list(iterator)
    assert len(children) == 2
    assert children <= {path.name for path in tmp_path.iterdir()}


def test_closing_ends_a_process_that_does_not_come_to_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builders, "_LEAVE_SECONDS", 0.1)
    processes = BuilderProcesses(StepBuilder(order(None, away(tmp_path, "wait")), 20, MaskingSettings(), 400), 1)
    processes.submit(0)
    wait_for((tmp_path / "gate-reached").exists)
    processes.close()
    assert multiprocessing.active_children() == []


def test_processes_that_cannot_be_started_are_said_and_the_others_end(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = BaseProcess.start, []

    def starting(self: BaseProcess) -> None:
        if started:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        start(self)
        started.append(self)

    monkeypatch.setattr(BaseProcess, "start", starting)
    with (
        loader(workers=2) as steps,
        pytest.raises(BertsmithError, match=r"could not be started .*unavailable") as caught,
    ):
        next(iter(steps))
    assert caught.value.where == "workers = 2"
    assert multiprocessing.active_children() == []


def test_a_daemonic_process_is_told_that_it_may_start_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(vars(multiprocessing.current_process())["_config"], "daemon", True)
    with loader(workers=2) as steps, pytest.raises(BertsmithError, match=r"could not be started .*children"):
        next(iter(steps))


def test_a_beginning_epoch_is_told_with_its_account(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="bertsmith")
    with loader(steps=(0, 2)) as steps:
        list(steps)
        account = steps.order.epoch(0).account
    assert f"epoch 0 (phase 1): {account}" in caplog.text
    assert f"{account.truncated:,} truncated" in caplog.text


def test_of_many_epochs_some_are_told(caplog: pytest.LogCaptureFixture) -> None:
    """A corpus of a few documents has several in a step, whose lines would hide those of the loss."""
    caplog.set_level("INFO", logger="bertsmith")
    per_epoch = Order(Epochs(make_source(), seed=1, phase=1, sequence_length=64)).epoch(0).account.instances
    with loader(steps=(0, 35 * per_epoch // 20)) as steps:
        list(steps)
    told = [message for message in caplog.messages if message.startswith("epoch ")]
    assert [each.split()[1] for each in told] == [str(epoch) for epoch in (*range(10), 10, 20, 30)]
    assert [each for each in told if each.endswith("; from here on every 10th epoch is logged")] == [told[10]]
