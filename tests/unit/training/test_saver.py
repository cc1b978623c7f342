"""Saves in the background: what training waits for, what it does not, and what becomes of a write that fails."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from bertsmith.base.errors import BertsmithError
from bertsmith.training.checkpoints import Best, Position, load_best, newest_whole, step_folders
from bertsmith.training.checkpoints import saver as module
from bertsmith.training.checkpoints.saver import Saver
from bertsmith.training.checkpoints.state import Snapshot
from made_checkpoints import STATE, loaded, made, names, same, update, warnings

LONG = 120.0
"""Seconds that no machine is too busy for."""


class Gate:
    """Stands in for `write_step`: waits to be let through, and then writes, or fails as often as told."""

    def __init__(self, fails: int = 0) -> None:
        self.open, self.reached, self.fails = threading.Event(), threading.Event(), fails
        self.write = module.write_step
        self.error: Exception = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.tried = 0

    def __call__(self, *arguments: Any) -> None:
        self.reached.set()
        assert self.open.wait(LONG)
        self.tried += 1
        if self.tried <= self.fails:
            raise self.error
        self.write(*arguments)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Gate]]:
    gates: list[Gate] = []

    def planted(fails: int = 0, opened: bool = True, error: Exception | None = None) -> Gate:
        gates.append(Gate(fails))
        gates[0].error = error or gates[0].error
        if opened:
            gates[0].open.set()
        monkeypatch.setattr(module, "write_step", gates[0])
        return gates[0]

    yield planted
    for each in gates:
        each.open.set()


def at(step: int, best: Best | None = None) -> Position:
    return Position(step, 1, step, best=best)


def test_training_goes_on_while_it_is_written_and_changes_nothing_of_it(tmp_path: Path, gate: Any) -> None:
    held, (model, optimizer) = gate(opened=False), made(seed=1)
    expected, _ = made(seed=1)
    with Saver(tmp_path, keep=2) as saver:
        saver.save(at(5), model, optimizer)
        assert held.reached.wait(LONG)
        assert not step_folders(tmp_path)
        for seed in range(2, 5):
            update(model, optimizer, seed)
        held.open.set()
    other, fresh = made(seed=9)
    assert loaded(tmp_path, other, fresh) == at(5)
    assert same(other, expected)
    assert not same(model, expected)
    assert [float(group["step"]) for group in fresh.param_groups] == [1.0, 1.0]


def test_a_second_save_waits_for_the_first_and_that_is_reported_once(
    tmp_path: Path, gate: Any, said: pytest.LogCaptureFixture
) -> None:
    held, (model, optimizer) = gate(opened=False), made()
    with Saver(tmp_path, keep=9) as saver:
        saver.save(at(5), model, optimizer)
        assert held.reached.wait(LONG)
        second = threading.Thread(target=saver.save, args=(at(10), model, optimizer))
        second.start()
        while not said.messages:
            second.join(0.01)
        assert second.is_alive()
        assert held.tried == 0
        held.open.set()
        second.join(LONG)
        held.open.clear()
        third = threading.Thread(target=saver.save, args=(at(15), model, optimizer))
        third.start()
        held.open.set()
        third.join(LONG)
    (message,) = said.messages
    assert "the save of step 10 waits, because step-00000005 is still being written" in message
    assert [each.name[-2:] for each in step_folders(tmp_path)] == ["05", "10", "15"]


def test_what_cannot_be_written_is_warned_about_once_and_tried_again(
    tmp_path: Path, gate: Any, said: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    model, optimizer = made()
    with Saver(tmp_path, keep=1) as saver:
        saver.save(at(5), model, optimizer)
        saver.wait()
        failing = gate(fails=4)
        saver.save(at(10), model, optimizer)
        saver._thread.join(LONG)  # type: ignore[union-attr]
        assert failing.tried == 5
    (warned,) = warnings(said)
    assert "step-00000010 could not be written: could not write: No space left on device" in warned
    assert "training continues" in warned
    assert warned.endswith("kept: step-00000005")
    assert said.messages[-1] == "step-00000010 is written now"
    assert names(tmp_path) == ["step-00000010"]


def test_a_newer_save_takes_the_place_of_one_that_failed(
    tmp_path: Path, gate: Any, said: pytest.LogCaptureFixture
) -> None:
    """The thread waits a minute before it tries again, and the next save does not wait for that."""
    gate(fails=2)
    model, optimizer = made()
    with Saver(tmp_path, keep=2) as saver:
        for step in (5, 10, 15):
            saver.save(at(step), model, optimizer)
            while len(warnings(said)) < min(step // 5, 2):
                threading.Event().wait(0.01)
    assert [each.split()[1] for each in warnings(said)] == ["step-00000005", "step-00000010"]
    assert "there is no checkpoint yet" in warnings(said)[0]
    assert names(tmp_path) == ["step-00000015"]


def test_what_is_waited_for_and_cannot_be_written_is_an_error(
    tmp_path: Path, gate: Any, said: pytest.LogCaptureFixture
) -> None:
    model, optimizer = made()
    with Saver(tmp_path, keep=1) as saver:
        saver.save(at(5), model, optimizer)
    gate(fails=99)

    def stopped() -> None:
        with Saver(tmp_path, keep=1) as saver:
            saver.save(at(10), model, optimizer)
            saver.wait()

    with pytest.raises(BertsmithError, match="No space left") as caught:
        stopped()
    assert "step-00000010" in caught.value.where
    assert len(warnings(said)) == 1, "when it failed, and not again at the end"
    assert newest_whole(tmp_path) == tmp_path / "step-00000005"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["step-00000005"]


def test_a_run_that_ends_without_its_last_checkpoint_is_told_so(
    tmp_path: Path, gate: Any, said: pytest.LogCaptureFixture
) -> None:
    gate(fails=99)
    with Saver(tmp_path, keep=1) as saver:
        saver.save(at(10), *made())
    assert "step-00000010 was not written: could not write: No space left" in warnings(said)[-1]


def test_best_weights_that_could_not_be_written_are_those_of_their_step(tmp_path: Path, gate: Any) -> None:
    """They stay in memory as long as no step folder that refers to them could be written."""
    gate(fails=3)
    model, optimizer = made(seed=1)
    expected, _ = made(seed=1)
    best = Best(0.5, 5)
    with Saver(tmp_path, keep=1) as saver:
        for step in (5, 10, 15):
            saver.save(at(step, best), model, optimizer)
            saver._hurry.set()
            saver._thread.join(LONG)  # type: ignore[union-attr]
            for each in tmp_path.glob("best-*"):
                (each / "weights.safetensors").unlink()  # as if it, too, had been refused
            update(model, optimizer, step)
        saver.save(at(20, best), model, optimizer)
        saver.wait()
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith("best")] == ["best-00000005"]
    assert loaded(tmp_path, *made()) == at(20, best)
    kept, _ = made(seed=9)
    load_best(tmp_path, best, kept)
    assert same(kept, expected)


def test_best_weights_of_an_earlier_stage_are_not_those_that_the_next_one_begins_with(tmp_path: Path) -> None:
    best = Best(0.5, 5)
    first, second = made(seed=1), made(seed=2)
    with Saver(tmp_path, keep=1) as saver:
        saver.save(at(5, best), *first)
        saver.save(Position(5, 2, 0, kept=[best]), *second)
    kept, _ = made(seed=9)
    load_best(tmp_path, best, kept)
    assert same(kept, first[0])


def test_best_weights_are_whole_before_the_step_folder_that_refers_to_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, write = [], module.write_step

    def looking(run: Path, position: Position, tensors: Any) -> None:
        seen.append(len(load_file(run / "best-00000005" / "weights.safetensors")))
        write(run, position, tensors)

    monkeypatch.setattr(module, "write_step", looking)
    model, optimizer = made()
    with Saver(tmp_path, keep=1) as saver:
        saver.save(at(5, Best(0.5, 5)), model, optimizer)
    assert seen == [len(model.state_dict())]


def test_a_bug_in_the_thread_is_raised_where_it_is_seen(tmp_path: Path, gate: Any) -> None:
    gate(fails=1, error=TypeError("ours"))
    saver = Saver(tmp_path, keep=1)
    saver.save(at(5), *made())
    with pytest.raises(TypeError, match="ours"):
        saver.save(at(10), *made())


def test_an_interrupt_waits_for_nothing(tmp_path: Path, gate: Any) -> None:
    held = gate(opened=False)
    saver = Saver(tmp_path, keep=1)
    saver.save(at(5), *made())
    assert held.reached.wait(LONG)
    with pytest.raises(KeyboardInterrupt), saver:
        raise KeyboardInterrupt
    assert saver._thread is not None
    assert saver._thread.is_alive()
    assert saver._thread.daemon, "the process ends without it"
    held.open.set()
    saver._thread.join(LONG)


def test_another_error_waits_for_what_is_being_written(tmp_path: Path) -> None:
    saver = Saver(tmp_path, keep=1)
    saver.save(at(5), *made())
    with pytest.raises(ValueError, match="other"), saver:
        raise ValueError("other")
    assert newest_whole(tmp_path) == tmp_path / "step-00000005"


def test_what_a_checkpoint_builds_on_is_on_the_disk_before_it(tmp_path: Path, said: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def before() -> None:
        seen.append(len(step_folders(tmp_path)))
        if len(seen) > 1:
            raise BertsmithError("no line can be written", "metrics.jsonl")

    model, optimizer = made()
    with Saver(tmp_path, keep=9, before=before) as saver:
        for step in (5, 10):
            saver.save(at(step), model, optimizer)
    assert seen[:2] == [0, 1]
    assert names(tmp_path) == ["step-00000005"]
    assert "step-00000010 could not be written: no line can be written (metrics.jsonl)" in warnings(said)[0]


def test_a_snapshot_uses_its_buffers_again_and_shares_nothing() -> None:
    first, second = torch.arange(6.0).view(2, 3), torch.tensor(7, dtype=torch.int64)
    snapshot = Snapshot()
    snapshot.take({"a": first, "b": second}, keep=True)
    places = [each.data_ptr() for each in snapshot.tensors.values()]
    assert not {first.data_ptr(), second.data_ptr()} & set(places)
    first += 1
    snapshot.take({"a": first, "b": second}, keep=True)
    assert [each.data_ptr() for each in snapshot.tensors.values()] == places
    assert torch.equal(snapshot.tensors["a"], first)
    snapshot.take({"a": first[:1]}, keep=True)
    assert torch.equal(snapshot.tensors["a"], first[:1])
    assert list(snapshot.tensors) == ["a"]
    snapshot.take({"a": first}, keep=False)
    assert not snapshot.tensors


def test_files_say_what_they_hold(tmp_path: Path) -> None:
    model, optimizer = made()
    with Saver(tmp_path, keep=1) as saver:
        saver.save(at(5), model, optimizer)
    tensors = load_file(tmp_path / "step-00000005" / STATE)
    assert torch.equal(tensors["model.masked_head.bias"], model.state_dict()["masked_head.bias"])
    assert len(tensors) == 3 * len(list(model.parameters())) + 2
