"""What `make gpu-check` does around the tests and measurements on a GPU: time, file, and the table at the end."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.table import Report, Table


@pytest.fixture
def check(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, which finds a GPU."""
    spec = importlib.util.spec_from_file_location("gpu_check", repository / "benchmarks" / "gpu_check.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "A GPU 80GB")
    monkeypatch.setattr(module.log, "configure", lambda: None)
    return module


def found(options: BenchOptions, folder: Path, command: str) -> Report:
    table = Table("A pre-training step", ["", "tokens/s"], [["large", "1"]])
    return Report(command, {"device": "A GPU", "versions": "torch 2"}, [], [{"case": "large", "ours": 1.0}], [table])


def test_the_table_comes_last_and_the_file_says_how_it_was_made(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "rows.json"
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--json", str(to), "--only", "large, 8"])
    monkeypatch.setattr(check, "run_tests", lambda: "passed")
    monkeypatch.setattr(check, "bench_pretrain_step", found)
    assert check.main() == 0
    *_, title, head, row = capsys.readouterr().out.splitlines()
    assert (title, head.split(), row.split()) == ("A pre-training step", ["tokens/s"], ["large", "1"])
    kept = json.loads(to.read_text())
    assert kept["command"] == f"make gpu-check ARGS=\"--json {to} --only 'large, 8'\""
    assert kept["machine"] == {"device": "A GPU", "versions": "torch 2"}
    assert kept["tests"] == "passed"
    assert kept["rows"]
    monkeypatch.setattr(check, "run_tests", lambda: "FAILED")
    assert check.main() == 1
    assert "tests FAILED" in capsys.readouterr().out


def test_measurements_get_what_the_tests_left_of_the_time(
    check: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a clock that the tests move on by 200 seconds."""
    now, minutes = [1000.0], []

    def tests() -> str:
        now[0] += 200
        return "NOT DONE after 200 s"

    def measured(options: BenchOptions, *_: Any) -> Report:
        minutes.append(options.minutes)
        raise BertsmithError("nothing was measured", "bench pretrain-step", "")

    monkeypatch.setattr(check, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(check, "run_tests", tests)
    monkeypatch.setattr(check, "bench_pretrain_step", measured)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
    assert check.main() == 2
    assert check.TEST_SECONDS + minutes[0] * 60 == pytest.approx(check.TOTAL_SECONDS)
    assert check.TOTAL_SECONDS <= 9 * 60 - 30
    assert "tests NOT DONE after 200 s; nothing was measured" in capsys.readouterr().err


def test_tests_that_hang_are_ended_with_all_that_they_started(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = tmp_path / "hanging"
    hanging.write_text(
        f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/pid.part\nmv {tmp_path}/pid.part {tmp_path}/pid\nwait\n"
    )
    hanging.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(hanging))
    monkeypatch.setattr(check, "TEST_SECONDS", 5.0)
    assert check.run_tests() == "NOT DONE after 5 s"
    started, end = int((tmp_path / "pid").read_text()), time.monotonic() + 120
    while is_alive(started):
        assert time.monotonic() < end, "it outlived the tests"
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
