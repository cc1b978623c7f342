"""The commands and the Python of docs/prediction.md, run as they stand."""

from __future__ import annotations

import csv
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import bertsmith
from made_pages import blocks, page, ran, read_lines, typed, write_lines, write_table
from made_rows import QUICK, made_model, rows

(COMMANDS,) = blocks(page("prediction.md"))
(PYTHON,) = blocks(page("prediction.md"), "python")
GOOD = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained model, a fine-tuned one and rows, with which the page's commands were run."""
    folder = tmp_path_factory.mktemp("page")
    model, short = made_model(folder / "runs" / "base"), replace(QUICK, epochs=1)
    bertsmith.finetune("classify", model, rows(64, 1), rows(24, 2), folder / "runs" / "labels", settings=short)
    write_table(folder / "reviews.csv", [{"text": row["text"]} for row in rows(GOOD, 3)])
    (folder / "blimp").mkdir()
    pairs = [{"sentence_good": row["text"], "sentence_bad": "word1"} for row in rows(5, 4)]
    write_lines(folder / "blimp" / "one.jsonl", pairs)
    typed(folder, COMMANDS)
    return folder


@pytest.mark.slow
def test_the_commands_answer_every_row_and_leave_no_parts(folder: Path) -> None:
    texts = [row["text"] for row in rows(GOOD, 3)]
    assert [row["text"] for row in read_lines(folder / "labels.jsonl")] == texts
    assert [row["text"] for row in read_lines(folder / "again.jsonl")] == texts
    for name in ("labels.csv", "likely.csv"):
        with open(folder / name, newline="", encoding="utf-8") as file:
            assert [row["text"] for row in csv.DictReader(file)] == texts
    features = read_lines(folder / "tokens.jsonl")
    assert [line["linex_index"] for line in features] == list(range(GOOD))
    assert not list(folder.glob("*.parts"))
    assert (folder / "vectors.parquet").is_file()


@pytest.mark.slow
def test_the_python_runs(folder: Path) -> None:
    ran(folder, sys.executable, "-c", PYTHON + f"assert done.rows == {GOOD}")
