"""The commands and the Python of docs/prediction.md, run as they stand."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import bertsmith
from made_rows import QUICK, made_model, rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "prediction.md").read_text(encoding="utf-8")
(COMMANDS,) = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(PYTHON,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
GOOD = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained model, a fine-tuned one, rows, and a `bertsmith` that is this one."""
    folder = tmp_path_factory.mktemp("page")
    model = made_model(folder / "runs" / "base")
    bertsmith.finetune(
        "classify", model, rows(64, 1), rows(24, 2), folder / "runs" / "labels", settings=replace(QUICK, epochs=1)
    )
    with open(folder / "reviews.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text"], *([row["text"]] for row in rows(GOOD, 3))])
    (folder / "blimp").mkdir()
    pairs = [{"sentence_good": row["text"], "sentence_bad": "word1"} for row in rows(5, 4)]
    (folder / "blimp" / "one.jsonl").write_text("".join(json.dumps(row) + "\n" for row in pairs))
    (folder / "bin").mkdir()
    (folder / "bin" / "bertsmith").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bertsmith "$@"\n')
    (folder / "bin" / "bertsmith").chmod(0o755)
    ran(folder, "bash", "-euo", "pipefail", "-c", COMMANDS)
    return folder


def ran(folder: Path, *command: str) -> None:
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_the_commands_answer_every_row_and_leave_no_parts(folder: Path) -> None:
    texts = [row["text"] for row in rows(GOOD, 3)]
    assert [row["text"] for row in lines(folder / "labels.jsonl")] == texts
    assert [row["text"] for row in lines(folder / "again.jsonl")] == texts
    for name in ("labels.csv", "likely.csv"):
        with open(folder / name, newline="", encoding="utf-8") as file:
            assert [row["text"] for row in csv.DictReader(file)] == texts
    features = lines(folder / "tokens.jsonl")
    assert [line["linex_index"] for line in features] == list(range(GOOD))
    assert not list(folder.glob("*.parts"))
    assert (folder / "vectors.parquet").is_file()


@pytest.mark.slow
def test_the_python_runs(folder: Path) -> None:
    ran(folder, sys.executable, "-c", PYTHON + f"assert done.rows == {GOOD}")
