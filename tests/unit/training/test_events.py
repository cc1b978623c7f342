"""What happened to a run stays in its folder: every warning once, with its step, from before the folder is there."""

from __future__ import annotations

import json
import logging
import os
import platform
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import warn
from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.training.records.appended import AppendedFile
from bertsmith.training.records.environment import environment
from bertsmith.training.records.events import Events
from bertsmith.training.records.names import EVENTS_FILE
from made_pages import read_lines


def warnings(folder: Path) -> list[tuple[int, str]]:
    return [(each["step"], each["message"]) for each in read_lines(folder / EVENTS_FILE) if each["kind"] == "warning"]


def test_warnings_are_kept_from_before_the_run_has_a_folder_to_its_end(tmp_path: Path) -> None:
    step = 3
    with Events() as events:
        warn("two rows are alike")
        events.open(tmp_path, {"torch": "2"}, lambda: step)
        step = 7
        warn("the disk is nearly full")
        thread = threading.Thread(target=warn, args=("from a thread",))
        thread.start()
        thread.join()
    warn("after the run")
    assert read_lines(tmp_path / EVENTS_FILE)[0] == {"kind": "environment", "step": 3, "torch": "2"}
    assert warnings(tmp_path) == [(3, "two rows are alike"), (7, "the disk is nearly full"), (7, "from a thread")]


def test_what_is_warned_of_again_at_the_same_step_stands_once_and_a_resume_forgets_nothing(tmp_path: Path) -> None:
    for first, messages in ((0, ["a", "a", "b"]), (0, ["a"]), (4, ["a"])):
        with Events() as events:
            events.open(tmp_path, {"started": first}, lambda at=first: at)  # type: ignore[misc]
            for message in messages:
                warn(message)
    assert warnings(tmp_path) == [(0, "a"), (0, "b"), (4, "a")]
    assert [each["step"] for each in read_lines(tmp_path / EVENTS_FILE) if each["kind"] == "environment"] == [0, 4]


def test_a_line_that_was_cut_short_is_removed(tmp_path: Path) -> None:
    (tmp_path / EVENTS_FILE).write_text('{"kind": "warning", "step": 1, "message": "x"}\n{"kind": "warn')
    with Events() as events:
        events.open(tmp_path, {}, lambda: 2)
        warn("y")
    assert warnings(tmp_path) == [(1, "x"), (2, "y")]


def test_the_error_that_ends_a_run_is_kept(tmp_path: Path) -> None:
    def run() -> None:
        with Events() as events:
            events.open(tmp_path, {}, lambda: 5)
            raise BertsmithError("the gradient is not finite", "phase 1, step 6", "lower the learning rate")

    with pytest.raises(BertsmithError, match="not finite"):
        run()
    with pytest.raises(BertsmithError, match="not finite"):
        run()
    found = [each for each in read_lines(tmp_path / EVENTS_FILE) if each["kind"] == "error"]
    assert [(each["step"], each["message"]) for each in found] == [
        (5, "the gradient is not finite (phase 1, step 6)")
    ] * 2


@pytest.mark.parametrize(("error", "kept"), [(MemoryError("no room"), True), (StoppedAfterSaving("at 5"), False)])
def test_errors_of_others_are_kept_and_a_stop_is_none(tmp_path: Path, error: Exception, kept: bool) -> None:
    def run() -> None:
        with Events() as events:
            events.open(tmp_path, {}, lambda: 5)
            raise error

    with pytest.raises(type(error)):
        run()
    found = [each["message"] for each in read_lines(tmp_path / EVENTS_FILE) if each["kind"] == "error"]
    assert found == ["MemoryError: no room"] * kept


def test_a_run_that_does_not_start_leaves_nothing(tmp_path: Path) -> None:
    def run() -> None:
        with Events():
            warn("two rows are alike")
            raise BertsmithError("there is a run in this folder already")

    with pytest.raises(BertsmithError):
        run()
    assert not list(tmp_path.iterdir())


def test_a_disk_that_refuses_stops_nothing_and_what_is_lost_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / EVENTS_FILE).mkdir()
    with Events() as events:
        events.open(tmp_path, {}, lambda: 1)
        warn("kept back")
    assert "2 lines could not be written" in caplog.text
    os.rmdir(tmp_path / EVENTS_FILE)
    with Events() as events:
        events.open(tmp_path, {}, lambda: 1)
        warn("written")
    assert warnings(tmp_path) == [(1, "written")]


def test_a_warning_of_a_full_disk_by_a_file_that_holds_its_lock_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any) -> None:
        raise OSError(28, "No space left on device")

    with Events() as events:
        events.open(tmp_path, {}, lambda: 1)
        metrics = AppendedFile(tmp_path / "metrics.jsonl")
        with monkeypatch.context() as full:
            full.setattr(AppendedFile, "_put", refuse)
            metrics.write(b"a line\n")
        metrics.close()
    assert ["No space left" in message for _, message in warnings(tmp_path)] == [True]


def test_python_still_shows_warnings_of_those_who_set_up_no_log(tmp_path: Path) -> None:
    logger = logging.getLogger("bertsmith")
    before = list(logger.handlers)
    with Events() as events:
        events.open(tmp_path, {}, lambda: 0)
        assert logger.handlers == before, "a handler would take the place of Python's last resort"


def test_an_environment_names_versions_and_devices_and_no_place_or_person() -> None:
    found = environment(torch.device("cpu"))
    assert torch.__version__.startswith(found["torch"]), "which a build for CUDA has more of than its package"
    assert (found["ranks"], sum(found["devices"].values())) == (1, 1)
    told = json.dumps(found)
    home = Path.home()
    assert str(home) not in told
    assert platform.node() not in found.values()
    assert str(Path.cwd()) not in told
