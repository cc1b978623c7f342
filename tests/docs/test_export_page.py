"""The commands and the Python of docs/export.md, run as they stand, in this process."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import bertsmith
from made_heads import needs_engines
from made_pages import blocks, page, read_lines, run_here, typed_here, write_table
from made_rows import QUICK, made_model, rows

PAGE = page("export.md")
(COMMANDS,) = blocks(PAGE)
(CODE,) = blocks(PAGE, "python")
pytestmark = needs_engines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier and rows, with which the page's commands were run."""
    folder = tmp_path_factory.mktemp("page")
    for name, count in (("dev", 40), ("new", 7)):
        write_table(folder / f"{name}.csv", rows(count, 2))
    model = made_model(folder / "mini")
    bertsmith.finetune("classify", model, rows(96, 1), rows(40, 2), folder / "runs" / "labels", settings=QUICK)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        typed_here(COMMANDS)
    return folder


def test_the_commands_predict_export_and_measure(folder: Path) -> None:
    lines = read_lines(folder / "predictions.jsonl")
    assert [line["prediction"]["label"] for line in lines] == [line["label"] for line in lines]
    assert json.loads((folder / "labels-openvino" / "export.json").read_text())["int8"]["rows"] == 40
    assert (folder / "repository" / "reviews" / "config.pbtxt").is_file()


def test_the_python_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.chdir(folder)
    assert run_here(CODE)["logits"].shape == (2, 2)


def test_the_page_has_every_precision_of_every_engine() -> None:
    from bertsmith.inference.backends.exported import BACKENDS

    for backend, precisions in BACKENDS.items():
        (row,) = re.findall(rf"^\| `{backend}`.*?\| (.*?) \|", PAGE, re.MULTILINE)
        assert row == ", ".join(precisions)
