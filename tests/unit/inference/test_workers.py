"""Processes that answer parts: what one does whose parent has ended them all."""

from __future__ import annotations

import logging
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.inference.parts.folder import PartsFolder
from bertsmith.inference.parts.part import PartWork
from bertsmith.inference.parts.workers import _Log, _serve, processes
from bertsmith.tasks.reading.records import Columns


class Work(PartWork):
    columns, facts = Columns(), {}

    def usable(self, where: str, row: Any) -> None: ...

    def answered(self, *values: Any) -> bytes:
        return b""


@pytest.mark.parametrize("ends", ["before", "while a model fails", "with what it was told unread"])
def test_a_worker_that_nobody_hears_any_more_ends_without_an_error(
    ends: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("start_worker", "leave_stopping_to_parent"):  # else this process, and later tests, ignore signals
        monkeypatch.setattr(f"bertsmith.inference.parts.workers.{name}", lambda: None)
    ours, theirs = multiprocessing.Pipe()
    if ends.startswith("with"):
        monkeypatch.setattr(_Log, "only_warnings", lambda _: ours.close())
    else:
        ours.close()  # as where another worker has died

    def load(device: str) -> PartWork:
        if ends.startswith("while"):
            raise BertsmithError("this model cannot be loaded")
        return Work()

    _serve(theirs, load, "cpu", PartsFolder(tmp_path / "out.jsonl"), "stop", _Log(0, logging.INFO))


def test_a_worker_that_cannot_be_started_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("multiprocessing.process.BaseProcess.start", refused)
    with (
        pytest.raises(BertsmithError, match=r"worker 1 of 2 could not be started .*unavailable"),
        processes(lambda device: Work(), ["cpu", "cpu"], PartsFolder(tmp_path / "out.jsonl"), "stop"),
    ):
        pass
