"""Processes that answer parts: what one does whose parent has ended them all."""

from __future__ import annotations

import logging
import multiprocessing
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.inference import embed_file, predict_file
from bertsmith.inference.parts.folder import PartsFolder
from bertsmith.inference.parts.part import Part, PartWork
from bertsmith.inference.parts.run import RowOptions
from bertsmith.inference.parts.workers import Processes, _Log, _serve, _Worker, processes
from bertsmith.tasks.reading.records import Columns, RowReader


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


def test_each_worker_has_a_device_of_its_own_and_loads_its_model_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    assert RowOptions(workers=2).devices("cpu") == ["cpu", "cpu"]
    assert RowOptions(gpus="all").devices("auto") == ["cuda:0", "cuda:1", "cuda:2"]
    assert RowOptions(gpus="2").devices("auto") == ["cuda:0", "cuda:1"]
    for module, made, work in ((embed_file, "Embedder", "EmbedWork"), (predict_file, "load_predictor", "PredictWork")):
        monkeypatch.setattr(module, made, lambda model, **loading: loading)
        monkeypatch.setattr(module, work, lambda loading, kind: loading)
        given = {"device": "auto", "precision": "fp32"}
        assert module._loaded("model", given, "", "cuda:1") == {**given, "device": "cuda:1"}


@pytest.mark.parametrize("is_read", [True, False])
def test_of_several_faults_the_first_one_in_the_file_is_told(is_read: bool) -> None:
    """Whichever comes first: that of a later part, or of what cannot be read."""
    (one, of_one), (two, of_two) = multiprocessing.Pipe(), multiprocessing.Pipe()
    both = [_Worker(name, None, pipe) for name, pipe in (("one", one), ("two", two))]
    workers = Processes(both, (Columns(), RowReader, {}))

    def parts() -> Iterator[Part]:
        yield Part(0, 0, [])
        if not is_read:
            raise BertsmithError("not read")
        yield Part(1, 1, [])

    def answer() -> None:
        of_two.send(BertsmithError("second"))
        time.sleep(0.2)  # where both come at once, the test shows less, and passes
        of_one.send(BertsmithError("first"))

    threading.Thread(target=answer).start()
    with pytest.raises(BertsmithError, match="first"):
        list(workers.run(parts()))
