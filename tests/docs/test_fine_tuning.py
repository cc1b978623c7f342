"""The commands of docs/finetuning.md and docs/reading-results.md, run as they stand."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from made_pages import ROOT, blocks, page, read_lines, typed, write_table
from made_rows import made_model, rows

PAGE = page("finetuning.md")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows and a run with a model, with which the page's commands were run."""
    folder = tmp_path_factory.mktemp("page")
    made_model(folder / "runs" / "mini")
    for name, count, seed in (("train", 48, 1), ("dev", 16, 2), ("test", 16, 3)):
        write_table(folder / f"{name}.csv", rows(count, seed))
    write_table(folder / "new.csv", [{"review": row["text"], "label": row["label"]} for row in rows(5, 4)])
    numbers = {"praise": "1", "blame": "0"}
    phrases = [f"{row['text']}\t{numbers[row['label']]}" for row in rows(400, 5)]
    (folder / "phrases.tsv").write_text("\n".join(["sentence\tlabel", *phrases]) + "\n", encoding="utf-8")
    (folder / "benchmarks").symlink_to(ROOT / "benchmarks")
    commands = blocks(PAGE) + blocks(page("reading-results.md"))
    assert "this run is finished already" in typed(folder, "\n".join(commands)).stderr
    return folder


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
    lines = read_lines(folder / "predictions.jsonl")
    assert len(lines) == 5
    assert {line["prediction"]["label"] for line in lines} <= {"praise", "blame"}
    assert all(line["prediction"]["truncated_tokens"] == 0 for line in lines)
