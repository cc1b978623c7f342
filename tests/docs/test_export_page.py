"""The commands and the Python of docs/export.md, run as they stand."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import bertsmith
from made_rows import QUICK, made_model, rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
(COMMANDS,) = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
(CODE,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
pytestmark = pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("onnx", "onnxruntime", "openvino")),
    reason="onnx, onnxruntime or openvino is not installed",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier, rows, and a `bertsmith` that is this one, in which the page's commands were run."""
    folder = tmp_path_factory.mktemp("page")
    for name, count in (("dev", 40), ("new", 7)):
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, ["text", "label"])
            writer.writeheader()
            writer.writerows(rows(count, 2))
    model = made_model(folder / "mini")
    bertsmith.finetune("classify", model, rows(96, 1), rows(40, 2), folder / "runs" / "labels", settings=QUICK)
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


def test_the_commands_predict_export_and_measure(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "predictions.jsonl").read_text().splitlines()]
    assert [line["prediction"]["label"] for line in lines] == [line["label"] for line in lines]
    assert json.loads((folder / "labels-openvino" / "export.json").read_text())["int8"]["rows"] == 40
    assert (folder / "repository" / "reviews" / "config.pbtxt").is_file()


def test_the_python_runs(folder: Path) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed")
    ran(folder, sys.executable, "-c", CODE + "assert logits.shape == (2, 2)")


def test_the_page_has_every_precision_of_every_engine() -> None:
    from bertsmith.inference.backends.exported import BACKENDS

    for backend, precisions in BACKENDS.items():
        (row,) = re.findall(rf"^\| `{backend}`.*?\| (.*?) \|", PAGE, re.MULTILINE)
        assert row == ", ".join(precisions)
