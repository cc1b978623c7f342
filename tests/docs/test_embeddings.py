"""The commands and the Python of docs/embeddings.md, run as they stand."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from made_pairs import pairs, scored_pairs
from made_rows import made_model

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "embeddings.md").read_text(encoding="utf-8")
COMMANDS, *_ = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
OURS, THEIRS = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, an encoder, and a `bertsmith` that is this one, in which the page's commands were run."""
    folder = tmp_path_factory.mktemp("page")
    made_model(folder / "runs" / "mini")
    made = pairs(64, 1, negatives=True)
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    for name, rows in (("scored", scored_pairs(20, 2)), ("texts", [{"text": row["text"]} for row in made])):
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
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


def test_the_commands_give_vectors_and_similarities(folder: Path) -> None:
    vectors = np.load(folder / "vectors.npy", allow_pickle=False)
    assert (vectors.shape, vectors.dtype) == ((64, 32), np.float32)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    lines = [json.loads(line) for line in (folder / "similarities.jsonl").read_text().splitlines()]
    assert len(lines) == 20
    assert all(-1.001 <= line["prediction"]["similarity"] <= 1.001 for line in lines)
    assert json.loads((folder / "runs" / "embed" / "finetune.json").read_text())["metric"] == "spearman"


def test_the_python_runs(folder: Path) -> None:
    ran(folder, sys.executable, "-c", OURS + "assert vectors.shape == (2, 32)")


def test_the_folder_opens_in_sentence_transformers(folder: Path) -> None:
    pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    ran(folder, sys.executable, "-c", THEIRS + "assert vectors.shape == (1, 32)")
