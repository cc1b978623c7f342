"""What `make gpu-check` does around the tests and measurements on a GPU: time, file, order, and what fails."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.gpu import rows as gpu_rows
from bertsmith.bench.gpu.rows import Rows
from bertsmith.bench.process import OutOfTime
from made_commands import called
from made_gpu_checks import SECONDS, fine, found_check, made_parts
from made_ranks import is_alive


@pytest.fixture
def check(script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, which finds a GPU."""
    return found_check(script, monkeypatch)


def test_without_a_gpu_it_lists_every_row_with_its_call_its_seconds_and_what_is_expected(
    check: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert called(check, monkeypatch) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert "no CUDA device was found" in head
    calls = [line for line in lines if line.startswith("in call")]
    seconds = [float(line.split()[-2]) for line in calls]
    assert max(seconds) <= 510, "nine minutes with start and end"
    assert all('ARGS="--go-on"' in line for line in calls[1:])
    in_calls = " ".join(lines).split("in call ")
    named = [line.strip().partition(" (expected")[0] for line in lines if line.startswith("    ") and "::" not in line]
    rows = [name for name in named if not name.startswith("tests/")]
    assert len(rows) == len(set(rows))
    order = [
        "correctness: flash varlen, bf16",
        "correctness: a compiled step",
        "large, 256 full at 128: bf16",
        "large, 64 full at 512: bf16",
        "update alone: large, LAMB",
        "products of a layer",
        "large, 256 full at 128: bf16, AdamW, compiled, CUDA graphs",
        "inference: large, 32 x 384, tf32",
        "large, 256 full at 128: transformers",
        "large, 64 full at 512: transformers",
        "ladder: fp32",
        "fine-tuning: sst2",
        "large, 256 with Wikipedia's lengths at 128: transformers, bf16 autocast, AdamW, compiled\n",
        "bert-tiny",
        "bert-mini",
        "tests: ",
        "base, 256 full at 128",
    ]
    places = [next(place for place, row in enumerate(rows) if f"{row}\n".startswith(start)) for start in order]
    assert places == sorted(places)
    first = in_calls[1]
    assert all(start in first for start in order[:9]), "the most valuable are in the first call, transformers' too"
    of_large = [row for row in rows if row.startswith("large") and "transformers" not in row]
    assert sum("of attention 0" not in row for row in of_large) == 2, "with attention dropout"
    expected = [line for line in lines if "(expected:" in line]
    assert all("on an H100" in line and "on an H200" in line for line in expected)
    counted = ("large", "base", "bert-", "update", "inference", "ladder")
    without = [line for line in lines if line.strip().startswith(counted) and "transformers" not in line]
    assert all("(expected:" in line for line in without)
    files = [line.strip() for line in lines if line.strip().startswith("tests/")]
    assert any("tests/gpu/test_attention_on_gpu.py: Every attention back-end on a card" in line for line in files)
    assert files[-1].startswith("tests/gpu/test_compiled_on_gpu.py: "), "which takes longest"


def test_a_row_that_fails_is_named_and_those_before_it_are_in_the_file_already(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
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

    monkeypatch.setattr(check, "check_parts", made_parts(fine, broken, buggy, slow, last))
    assert called(check, monkeypatch, "--json", to) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[:4] == [
        f"gpu-check: 2 rows in {to}, 3 not measured",
        "  broken: ValueError: no",
        "  buggy: KeyError: 'a bug'",
        "  slow: it was ended after 0 s",
    ]
    assert [line.split() for line in said[-3:]] == [["figure"], ["fine", "1.0"], ["last", "1.0"]]
    assert kept()["failed"][0]["why"].startswith("a process of the bench ended with status 1")
    assert kept()["command"] == f'make gpu-check ARGS="--json {to}"'
    assert "torch" in kept()["machine"]["versions"]


def test_a_kernel_that_is_not_exact_and_tests_that_fail_are_told_by_the_exit_status(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(rows: Rows, name: str, deadline: float) -> None:
        rows.add({"case": name, "figure": 1.0, "within": False})

    def failed(rows: Rows, name: str, deadline: float) -> None:
        rows.add({"case": check.TESTS, "figure": 0.0, "ended": "FAILED"})

    for measure, named in ((wrong, "wrong"), (failed, check.TESTS)):
        monkeypatch.setattr(check, "check_parts", made_parts(fine, measure))
        assert called(check, monkeypatch, "--json", tmp_path / f"{measure.__name__}.json") == 1
        assert f"NOT AS IT MUST BE: {named}" in capsys.readouterr().out


def test_rows_stand_beside_what_was_expected_of_them(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = {"figure": "figure", "what": "tokens/s", "as": ",.0f", "h100": 2000.0, "h200": 4000.0}
    monkeypatch.setattr(check, "expectations", lambda rows: {"counted": expected})

    def counted(rows: Rows, name: str, deadline: float) -> None:
        rows.add({"case": name, "figure": 1000.0})

    to = tmp_path / "rows.json"
    monkeypatch.setattr(check, "check_parts", made_parts(fine, counted))
    assert called(check, monkeypatch, "--json", to) == 0
    assert capsys.readouterr().out.splitlines()[-1].split() == [
        "counted",
        "tokens/s",
        "2,000",
        "4,000",
        "1,000",
        "0.50x",
        "0.25x",
    ]
    assert json.loads(to.read_text())["rows"][1]["expected"] == expected


def test_a_tiny_check_has_no_place_among_the_results(check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SystemExit) as ended:
        called(check, monkeypatch, "--tiny")
    assert ended.value.code == 2


def test_rows_are_chosen_by_expressions_in_their_order(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = []

    def first(rows: Rows, name: str, deadline: float) -> None:
        measured.append((name, deadline))
        fine(rows, name, deadline)

    def second(rows: Rows, name: str, deadline: float) -> None:
        first(rows, name, deadline)

    def third(rows: Rows, name: str, deadline: float) -> None:
        first(rows, name, deadline)

    monkeypatch.setattr(check, "check_parts", made_parts(first, second, third))
    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr(check, "time", clock)
    monkeypatch.setattr(gpu_rows, "time", clock)
    to = str(tmp_path / "rows.json")
    assert called(check, monkeypatch, "--json", to, "--seconds", "30", "--only", "^th", "fi.*t$") == 0
    assert measured == [("third", 1030.0), ("first", 1030.0)]
    assert called(check, monkeypatch, "--json", to, "--only", "nothing") == 2
    assert "no row has a name with 'nothing'" in capsys.readouterr().err


def test_the_tables_of_a_stored_file_are_shown(
    check: Any, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = repository / "benchmarks" / "results" / "nvidia-h200.json"
    assert called(check, monkeypatch, "--show", stored) == 0
    said = capsys.readouterr().out
    for title in (
        "The largest error beside float64",
        "A pre-training step",
        "Expected and measured",
        "Where the GPU's",
    ):
        assert title in said


def test_rows_have_the_time_of_their_part_and_what_is_left_is_named(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By a clock that the rows move on."""
    now, deadlines = [1000.0], []

    def hanging(rows: Rows, name: str, deadline: float) -> None:
        now[0] = deadline
        raise OutOfTime

    def first(rows: Rows, name: str, deadline: float) -> None:
        deadlines.append(deadline)
        now[0] += 350
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
    monkeypatch.setattr(check, "check_parts", made_parts(hanging, first, second, third))
    assert called(check, monkeypatch, "--json", tmp_path / "rows.json") == 0
    assert deadlines == [1000 + 2 * 2.5 * SECONDS, 1000 + check.TOTAL_SECONDS]
    assert check.TOTAL_SECONDS <= 9 * 60 - 30
    said = capsys.readouterr().out
    assert "1 rows" in said
    assert (
        f"hanging: it was ended after {2.5 * SECONDS:.0f} s\n  second: no time was left\n  third: no time was left"
        in said
    )
    assert "with --go-on, the next call" in said


def test_no_row_of_a_tiny_check_is_ended_for_the_time_that_it_takes(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is for a CPU, which may be busy."""
    deadlines = list[float]()

    def slow(rows: Rows, name: str, deadline: float) -> None:
        deadlines.append(deadline)
        fine(rows, name, deadline)

    clock = SimpleNamespace(monotonic=lambda: 1000.0)
    monkeypatch.setattr(check, "time", clock)
    monkeypatch.setattr(gpu_rows, "time", clock)
    monkeypatch.setattr(check, "check_parts", made_parts(slow))
    assert called(check, monkeypatch, "--tiny", "--seconds", "5000", "--json", tmp_path / "rows.json") == 0
    assert deadlines == [6000.0]


def test_tests_that_hang_are_ended_with_all_that_they_started(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = tmp_path / "hanging"
    hanging.write_text(
        f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/pid.part\nmv {tmp_path}/pid.part {tmp_path}/pid\nwait\n"
    )
    hanging.chmod(0o755)

    given = list[float]()

    class Process(subprocess.Popen[str]):
        """One whose time is over as soon as it hangs."""

        def wait(self, timeout: float | None = None) -> int:
            if timeout is not None:
                given.append(timeout)
                while not (tmp_path / "pid").exists():
                    time.sleep(0.01)
                raise subprocess.TimeoutExpired(self.args, timeout)
            return super().wait()

    monkeypatch.setattr(sys, "executable", str(hanging))
    monkeypatch.setattr(subprocess, "Popen", Process)
    assert check.run_tests(float("inf"))["ended"] == f"NOT DONE after {check.TEST_SECONDS:.0f} s"
    with pytest.raises(OutOfTime):
        check.run_tests(0.0)
    assert given == [check.TEST_SECONDS, 0.0]
    started, end = int((tmp_path / "pid").read_text()), time.monotonic() + 120
    while is_alive(started):
        assert time.monotonic() < end, "it outlived the tests"
        time.sleep(0.05)


def test_tests_that_fail_are_in_their_row_by_name(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tests"
    folder.mkdir()
    monkeypatch.setattr(check, "ROOT", tmp_path)
    monkeypatch.setattr(check, "TEST_PATHS", ("tests",))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take longer to import than the tests
    (folder / "test_right.py").write_text("def test_right():\n    pass\n")
    assert check.run_tests(float("inf")) | {"seconds": 0} == {"ended": "passed", "seconds": 0, "failed": []}
    (folder / "test_wrong.py").write_text("def test_wrong():\n    assert 1 == 2, 'a reason'\n")
    (folder / "test_compiled.py").write_text("def test_compiled():\n    pass\n")
    found = check.run_tests(float("inf"))
    assert found["ended"] == "FAILED"
    (line,) = found["failed"]
    assert line.startswith("FAILED tests/test_wrong.py::test_wrong - AssertionError: a reason")
    ran = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.endswith("%]")]
    order = ("right", "right", "wrong", "compiled")
    assert ran == [f"tests/test_{name}.py::test_{name}" for name in order], "what compiles comes last"


def test_failing_tests_and_the_one_under_way_are_told_from_what_else_is_printed(check: Any) -> None:
    logged = "ERROR    tests.log:log.py:3 a logged line"
    each = ["tests/a.py::one PASSED", "tests/a.py::two[x y] FAILED", logged, "tests/a.py::three ", "Fatal: Aborted"]
    assert check.failing(each, "FAILED") == ["tests/a.py::two[x y] FAILED", "tests/a.py::three "]
    assert check.failing(each[:3], "NOT DONE after 5 s") == ["tests/a.py::two[x y] FAILED"]
    ended = [*each[:3], "FAILED tests/a.py::two[x y] - why", "ERROR tests/b.py - no import"]
    assert check.failing(ended, "FAILED") == ended[3:]
    assert check.failing([logged], "passed") == []
