"""What `make gpu-check` does around the tests and measurements on a GPU: time, file, order, and what fails."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.gpu import rows as gpu_rows
from bertsmith.bench.gpu.plan import CheckSizes, check_parts
from bertsmith.bench.gpu.rows import Part, Rows
from bertsmith.bench.process import OutOfTime
from bertsmith.bench.step.run import StepRun
from bertsmith.bench.table import Table


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


def table(rows: Sequence[dict[str, Any]]) -> Table:
    return Table("Some rows", ["", "figure"], [[row["case"], str(row["figure"])] for row in rows])


def made_parts(*measures: Callable[[Rows, str, float], None]) -> Callable[..., Any]:
    """What takes the place of `check_parts`: a part for each measurement, whose row has its name."""

    def parts(sizes: CheckSizes, folder: Path, rows: Rows, only: str) -> tuple[list[Part], StepRun]:
        def part(measure: Callable[[Rows, str, float], None]) -> Part:
            name = measure.__name__
            return Part((name,), lambda names, deadline: measure(rows, name, deadline), table)

        _, run = check_parts(CheckSizes.tiny("cpu"), folder, rows)
        return [part(measure) for measure in measures], run

    return parts


def fine(rows: Rows, name: str, deadline: float) -> None:
    rows.add({"case": name, "figure": 1.0})


def test_without_a_gpu_it_lists_the_tests_and_then_every_row_in_order(repository: Path) -> None:
    """In a process that sees no GPU."""
    command = [sys.executable, "benchmarks/gpu_check.py"]
    hidden = os.environ | {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(repository / "src")}
    done = subprocess.run(command, cwd=repository, env=hidden, capture_output=True, text=True, check=True)
    head, *lines = done.stdout.splitlines()
    assert "no CUDA device was found" in head
    assert lines[0].startswith("  tests/house/test_torch_names.py: Every name of torch")
    assert lines[1].startswith("  tests/gpu/test_attention_on_gpu.py: Every attention back-end on a card")
    rows = [line.strip() for line in lines[lines.index("and measure") + 1 :]]
    assert len(rows) == len(set(rows))
    order = [
        "large, 256 full at 128",
        "large, 64 full at 512",
        "update alone: large, LAMB",
        "inference: large, 1 x 128",
    ]
    order += ["ladder: fp32", "fine-tuning: sst2", "base, 256 full at 128", "time: "]
    places = [next(place for place, row in enumerate(rows) if row.startswith(start)) for start in order]
    assert places == sorted(places)
    of_large = [row for row in rows if row.startswith("large")]
    assert sum("of attention 0" not in row for row in of_large) == 2, "with attention dropout"
    assert all("transformers" in row for row in rows if row.startswith(("large", "base")))


def test_a_row_that_fails_is_named_and_those_before_it_are_in_the_file_already(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "rows.json"

    def kept() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(to.read_text())
        return found

    def broken(rows: Rows, name: str, deadline: float) -> None:
        assert [row["case"] for row in kept()["rows"]] == ["fine"], "while the run goes on"
        raise BertsmithError("a process of the bench ended with status 1:\nTraceback\nValueError: no", "a module")

    def buggy(rows: Rows, name: str, deadline: float) -> None:
        raise KeyError("a bug")

    def slow(rows: Rows, name: str, deadline: float) -> None:
        raise OutOfTime

    def last(rows: Rows, name: str, deadline: float) -> None:
        assert [each["case"] for each in kept()["failed"]] == ["broken", "buggy", "slow"]
        fine(rows, name, deadline)

    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--json", str(to)])
    monkeypatch.setattr(check, "run_tests", lambda: "passed")
    monkeypatch.setattr(check, "check_parts", made_parts(fine, broken, buggy, slow, last))
    assert check.main() == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:4] == [
        f"gpu-check: tests passed; 2 rows in {to}",
        "  broken: ValueError: no",
        "  buggy: KeyError: 'a bug'",
        "  slow: no time was left",
    ]
    assert [line.split() for line in said[-3:]] == [["figure"], ["fine", "1.0"], ["last", "1.0"]]
    assert kept()["failed"][0]["why"].startswith("a process of the bench ended with status 1")
    assert kept()["command"] == f'make gpu-check ARGS="--json {to}"'
    assert kept()["tests"] == "passed"
    assert "torch" in kept()["machine"]["versions"]
    monkeypatch.setattr(check, "run_tests", lambda: "FAILED")
    assert check.main() == 1
    assert "tests FAILED" in capsys.readouterr().out


def test_rows_get_what_the_tests_left_of_the_time_and_the_rest_is_named(
    check: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a clock that the tests and the rows move on."""
    now, deadlines = [1000.0], []

    def tests() -> str:
        now[0] += 200
        return "NOT DONE after 200 s"

    def first(rows: Rows, name: str, deadline: float) -> None:
        deadlines.append(deadline)
        now[0] += 200
        fine(rows, name, deadline)

    def second(rows: Rows, name: str, deadline: float) -> None:
        deadlines.append(deadline)
        now[0] = deadline
        raise OutOfTime

    def third(rows: Rows, name: str, deadline: float) -> None:
        raise AssertionError("there is no time for it")

    clock = SimpleNamespace(monotonic=lambda: now[0])
    monkeypatch.setattr(check, "time", clock)
    monkeypatch.setattr(gpu_rows, "time", clock)
    monkeypatch.setattr(check, "run_tests", tests)
    monkeypatch.setattr(check, "check_parts", made_parts(first, second, third))
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--json", str(tmp_path / "rows.json")])
    assert check.main() == 1
    assert deadlines == [1200 + gpu_rows.MOST_SECONDS, 1000 + check.TOTAL_SECONDS]
    assert check.TOTAL_SECONDS <= 9 * 60 - 30
    said = capsys.readouterr().out
    assert "tests NOT DONE after 200 s; 1 rows" in said
    assert "second: no time was left\n  third: no time was left" in said


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


def test_kernels_are_kept_between_calls_where_nobody_says_otherwise(
    check: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    check.keep_kernels()
    kept = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    assert Path(kept).is_relative_to(repository)
    ignored = subprocess.run(["git", "check-ignore", "-q", kept], cwd=repository, check=False).returncode
    assert ignored == 0 or not (repository / ".git").exists()
    assert os.environ["TRITON_CACHE_DIR"] == "elsewhere"
