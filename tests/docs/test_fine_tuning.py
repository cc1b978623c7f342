"""The commands of docs/finetuning.md, run as they stand."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from made_rows import made_model, rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "finetuning.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, a run with a model, and a `bertsmith` that is this one, in which the page's commands were run."""
    folder = tmp_path_factory.mktemp("page")
    made_model(folder / "runs" / "mini")
    for name, count, seed in (("train", 48, 1), ("dev", 16, 2), ("test", 16, 3)):
        write(folder / f"{name}.csv", "text", rows(count, seed))
    write(folder / "new.csv", "review", rows(5, 4))
    (folder / "bin").mkdir()
    (folder / "bin" / "bertsmith").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bertsmith "$@"\n')
    (folder / "bin" / "bertsmith").chmod(0o755)
    numbers = {"praise": "1", "blame": "0"}
    phrases = [f"{row['text']}\t{numbers[row['label']]}" for row in rows(400, 5)]
    (folder / "phrases.tsv").write_text("\n".join(["sentence\tlabel", *phrases]) + "\n", encoding="utf-8")
    block = "\n".join(re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    command = ["bash", "-euo", "pipefail", "-c", block]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "this run is finished already" in done.stderr
    return folder


def write(path: Path, column: str, made: list[dict[str, str]]) -> None:
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([[column, "label"], *([row["text"], row["label"]] for row in made)])


def test_what_the_page_lists_is_there(folder: Path) -> None:
    listed = re.findall(r"^\| `([\w./-]+)` \|", PAGE, re.MULTILINE)
    assert "finetune.json" in listed
    kinds = {re.sub(r"\d+", "N", path.name) for path in (folder / "runs" / "labels").iterdir()}
    assert {re.sub(r"\d+", "N", name) for name in listed} <= kinds


def test_one_file_is_enough_and_more_can_be_asked(folder: Path) -> None:
    found = json.loads((folder / "runs" / "phrases" / "finetune.json").read_text())
    assert (found["train_rows"], found["dev_rows"]) == (320, 80)
    trusted = json.loads((folder / "runs" / "trusted" / "finetune.json").read_text())
    assert (len(trusted["folds"]), len(trusted["shares"])) == (5, 2)
    assert json.loads((folder / "figures.json").read_text())["rows"] == 16


def test_predictions_are_written(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 5
    assert {line["prediction"]["label"] for line in lines} <= {"praise", "blame"}
    assert all(line["prediction"]["truncated_tokens"] == 0 for line in lines)
