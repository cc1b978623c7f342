"""A later call of `make gpu-check`: what it keeps, what it measures again, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.gpu.rows import Rows
from bertsmith.bench.process import NO_TIME, OutOfTime
from made_commands import called
from made_gpu_checks import fine, found_check, made_parts


@pytest.fixture
def check(script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, which finds a GPU."""
    return found_check(script, monkeypatch)


def test_without_a_gpu_it_lists_the_rows_that_a_file_lacks(
    check: Any, repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    stored = repository / "benchmarks" / "results" / "nvidia-h200.json"
    assert called(check, monkeypatch, "--go-on", "--json", stored) == 0
    listed = {line.strip().partition(" (expected")[0] for line in capsys.readouterr().out.splitlines()}
    there = {row["case"] for row in json.loads(stored.read_text())["rows"] if NO_TIME not in row.get("note", "")}
    assert "ladder: fp32, padded" in listed - there
    assert not listed & there
    chosen = "large, 64 full at 512: bf16"
    assert called(check, monkeypatch, "--go-on", "--json", stored, "--again", "--only", chosen) == 0
    assert chosen in capsys.readouterr().out, "which is there already"


def test_without_a_gpu_it_lists_the_calls_of_what_is_asked_for(
    check: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(check, "check_parts", made_parts(first, second, third))
    assert called(check, monkeypatch, "--seconds", "80", "--only", "third", "ir", "second") == 0
    _, *lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    calls = [lines.index(line) for line in lines if line.startswith("in call")]
    assert lines[calls[0]].endswith("expected to take 80 s:")
    assert lines[calls[0] + 1 : calls[1]] == ["40 s for", "third", "40 s for", "first"]
    assert lines[calls[1] :] == ['in call 2 with ARGS="--go-on", expected to take 40 s:', "40 s for", "second"]
    assert called(check, monkeypatch, "--only", "fourth") == 2
    assert "no row has a name with 'fourth'" in capsys.readouterr().err


def first(rows: Rows, name: str, deadline: float) -> None:
    raise AssertionError("nothing is measured")


def second(rows: Rows, name: str, deadline: float) -> None:
    raise AssertionError("nothing is measured")


def third(rows: Rows, name: str, deadline: float) -> None:
    raise AssertionError("nothing is measured")


@pytest.mark.parametrize("options", [["--show"], ["--json"], ["--go-on", "--json"], ["--tiny", "--json"]])
@pytest.mark.parametrize("content", ['{"rows": []}', "[]", "no JSON", '{"machine": {}}'])
def test_a_file_that_is_none_of_rows_is_named_and_left_as_it_is(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], content: str
) -> None:
    path = tmp_path / "other.json"
    path.write_text(content)
    monkeypatch.setattr(check, "check_parts", made_parts(fine))
    with pytest.raises(BertsmithError, match=r"no rows of make gpu-check|is not JSON") as error:
        called(check, monkeypatch, *options, path)
    assert error.value.where == str(path)
    assert path.read_text() == content


def test_a_call_goes_on_where_the_one_before_ended(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    to, measured = tmp_path / "rows.json", []

    def first(rows: Rows, name: str, deadline: float) -> None:
        measured.append(name)
        fine(rows, name, deadline)

    def second(rows: Rows, name: str, deadline: float) -> None:
        measured.append(name)
        if len(measured) < 3:
            raise OutOfTime
        fine(rows, name, deadline)

    monkeypatch.setattr(check, "check_parts", made_parts(first, second))
    for more in ([], ["--go-on"]):
        assert called(check, monkeypatch, "--json", to, *more) == 0
    assert measured == ["first", "second", "second"]
    kept = json.loads(to.read_text())
    assert [(row["case"], row["call"]) for row in kept["rows"]] == [("first", 1), ("second", 2)]
    assert kept["failed"] == []
    assert [call["command"].partition("--json")[0] for call in kept["calls"]] == ['make gpu-check ARGS="'] * 2
    assert [part["first"] for part in kept["part_seconds"]] == ["first", "second", "second"]
    assert called(check, monkeypatch, "--json", to) == 2, "rows that were measured are not thrown away"
    assert "has 2 rows, which would be lost" in capsys.readouterr().err
    assert json.loads(to.read_text()) == kept
    to.write_text(json.dumps({**kept, "gpu": "another"}))
    with pytest.raises(SystemExit, match="rows of another, not A GPU 80GB"):
        called(check, monkeypatch, "--json", to, "--go-on")


def test_what_was_wrong_is_measured_again_and_what_failed_comes_last(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to, measured = tmp_path / "rows.json", []

    def broken(rows: Rows, name: str, deadline: float) -> None:
        measured.append(name)
        raise BertsmithError("no such kernel")

    def inexact(rows: Rows, name: str, deadline: float) -> None:
        measured.append(name)
        rows.add({"case": name, "figure": 1.0, "within": len(measured) > 3})

    def tests(rows: Rows, name: str, deadline: float) -> None:
        measured.append(name)
        rows.add({"case": name, "figure": 0.0, "ended": "passed" if len(measured) > 3 else "FAILED"})

    monkeypatch.setattr(check, "check_parts", made_parts(broken, inexact, tests))
    for status, more in ((1, []), (1, ["--only", "broken"]), (0, []), (0, ["--only", "tests"])):
        again = ["--go-on"] if to.is_file() else []
        assert called(check, monkeypatch, "--json", to, *again, *more) == status
    assert measured == ["broken", "inexact", "tests", "broken", "inexact", "broken", "tests"]
    kept = json.loads(to.read_text())
    assert [(row["case"], row["call"]) for row in kept["rows"]] == [("inexact", 3), ("tests", 3)]
    assert kept["failed"] == [{"case": "broken", "why": "no such kernel"}], "though the last call did not try it"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--go-on"], "is not there, so --go-on has no rows to keep"),
        (["--again", "--only", "fine"], "--again needs --go-on"),
        (["--go-on", "--again"], "and --only, which says what rows"),
    ],
)
def test_what_is_asked_for_without_its_rows_is_refused(
    check: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: list[str],
    said: str,
) -> None:
    monkeypatch.setattr(check, "check_parts", made_parts(fine))
    with pytest.raises(SystemExit) as ended:
        called(check, monkeypatch, "--json", tmp_path / "rows.json", *more)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_chosen_rows_are_measured_anew_and_those_told_in_part(
    check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    to, measured = tmp_path / "rows.json", []

    def whole(rows: Rows, name: str, deadline: float) -> None:
        measured.append(name)
        fine(rows, name, deadline)

    def in_part(rows: Rows, name: str, deadline: float) -> None:
        measured.append(name)
        rows.add({"case": name, "figure": 1.0, "note": "the GPU's time: no time was left" if len(measured) < 3 else ""})

    monkeypatch.setattr(check, "check_parts", made_parts(in_part, whole))
    for more in ([], ["--go-on"], ["--go-on", "--again", "--only", "wh"], ["--go-on"]):
        assert called(check, monkeypatch, "--json", to, *more) == 0
    assert measured == ["in_part", "whole", "in_part", "whole"]
    assert [(row["case"], row["call"]) for row in json.loads(to.read_text())["rows"]] == [("in_part", 2), ("whole", 3)]


def test_kernels_are_kept_between_calls_where_nobody_says_otherwise(
    check: Any, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    check.keep_kernels()
    kept = os.environ["TORCHINDUCTOR_CACHE_DIR"]
    assert Path(kept).is_relative_to(repository)
    ignored = subprocess.run(["git", "check-ignore", "-q", kept], cwd=repository, check=False).returncode
    assert ignored == 0 or not (repository / ".git").exists()
    assert os.environ["TRITON_CACHE_DIR"] == "elsewhere"
