"""A peer runs as its own users run it: without what the command line of Bertsmith sets for its own processes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bertsmith.bench.finetune import side as finetune
from bertsmith.bench.finetune.rows import TASKS, Prepared
from bertsmith.bench.measure import CaseSpec, measure, measure_peer
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.predict import side as predict
from bertsmith.bench.predict.texts import TextSet
from bertsmith.bench.process import Child, environment_of
from bertsmith.bench.serve import bench as serve
from bertsmith.bench.serve.client import Address
from bertsmith.bench.serve.side import FASTAPI
from bertsmith.bench.serve.side import Side as Server
from bertsmith.bench.step import race as step
from bertsmith.bench.step.side import TRANSFORMERS, StepSide

SET = {"MKL_CBWR": "AUTO,STRICT", "GOMP_SPINCOUNT": "10000"}


def of_prepare_and_batches(who: str, folder: Path) -> None:
    spec = CaseSpec("", who, folder, folder / "out", folder, {})
    with suppress(AttributeError):  # nothing was started
        (measure if who == "ours" else measure_peer)(spec)


def of_step(who: str, folder: Path) -> Child:
    return step.start_side(StepSide(side="ours" if who == "ours" else TRANSFORMERS), {}, folder, math.inf)


def of_finetune(who: str, folder: Path) -> Child:
    task = Prepared(TASKS[0], folder, folder, 0, 0, 0, 0)
    side = finetune.Side("ours" if who == "ours" else finetune.TRANSFORMERS, "fp32")
    return side.start(task, folder, "cpu", folder, math.inf)


def of_predict(who: str, folder: Path) -> Child:
    side = predict.Side(predict.OURS if who == "ours" else predict.PIPELINE, "torch", "fp32")
    return side.start(predict.Folders(folder, folder, folder), folder, math.inf)


def of_serve(who: str, folder: Path) -> Child:
    bench = serve.ServeBench(BenchOptions(), folder, TextSet("", ["a"], 0, [3]), [], serve.QUICK, folder, math.inf)
    return bench._server(Server(who if who == "ours" else FASTAPI, "fp32"), [], Address(1, "/"))


@pytest.mark.parametrize("start", [of_prepare_and_batches, of_step, of_finetune, of_predict, of_serve])
def test_a_peer_has_nothing_of_what_the_command_line_sets(
    start: Callable[[str, Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[dict[str, Any]] = []
    monkeypatch.setattr(Child, "_start", lambda self: started.append(self._environment))
    for name, value in SET.items():
        monkeypatch.setenv(name, value)
    for who in ("ours", "peer"):
        start(who, tmp_path / who)
    ours, peer = started
    assert SET.items() <= ours.items()
    assert SET.keys().isdisjoint(peer)
    assert "PATH" in peer


@pytest.mark.parametrize(
    ("device", "seen", "left"),
    [("cuda", None, "0"), ("cuda:1", None, "1"), ("cuda:1", "4,6", "6"), ("cpu", "4,6", "4,6")],
)
def test_the_trainer_sees_the_gpu_that_is_measured_alone(
    device: str, seen: str | None, left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would take all of them, each with a batch of the size that ours has."""
    started: list[Child] = []
    monkeypatch.setattr(Child, "_start", lambda self: started.append(self))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if seen:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", seen)
    task = Prepared(TASKS[0], tmp_path, tmp_path, 0, 0, 0, 0)
    for who in (finetune.OURS, finetune.TRANSFORMERS):
        finetune.Side(who, "fp32").start(task, tmp_path, device, tmp_path / who, math.inf)
    ours, peer = started
    assert ours._environment.get("CUDA_VISIBLE_DEVICES") == seen
    assert peer._environment["CUDA_VISIBLE_DEVICES"] == left
    devices = [json.loads(each._spec.read_text())["device"] for each in started]
    assert devices == [device, device.partition(":")[0]]


def test_what_a_user_has_set_otherwise_both_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    assert environment_of(ours=True) == {"MKL_CBWR": "COMPATIBLE"}
    assert environment_of(ours=False) == {}


def test_the_command_line_sets_no_more() -> None:
    """In a process without any of it; also where the command line has not run, ours asks MKL for the same."""
    code = (
        "import os\nbefore = dict(os.environ)\nfrom bertsmith.cli import main\nmain(['--version'])\n"
        "print({name: value for name, value in os.environ.items() if before.get(name) != value})"
    )
    plain = {name: value for name, value in os.environ.items() if name not in SET}
    said = subprocess.run([sys.executable, "-c", code], env=plain, capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == str(SET)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MKL_CBWR", raising=False)
        assert environment_of(ours=True) == {"MKL_CBWR": SET["MKL_CBWR"]}
