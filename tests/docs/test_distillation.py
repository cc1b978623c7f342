"""The commands of docs/distillation.md, run as they stand; only the recipe of the student on a corpus is made small."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.recipes.loader import save_recipe
from bertsmith.training.pretrain import config_of
from bertsmith.weights.huggingface import save_pretraining_model
from made_rows import rows
from made_runs import corpus, small_corpus, small_recipe

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "distillation.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, a corpus, a run with a model of its vocabulary, and a `bertsmith` that is this one, in which the page's
    commands were run."""
    folder = tmp_path_factory.mktemp("page")
    special, shape = corpus().special, small_recipe(model__layers=3).model
    model = PretrainingModel(config_of(shape, special.vocabulary_size, special.pad))
    initialise(model, 0.1, seed=0)
    save_pretraining_model(model, small_corpus() / "tokenizer", folder / "runs" / "mini" / "model")
    shutil.copytree(small_corpus(), folder / "corpus")
    save_recipe(small_recipe(model__layers=1), folder / "tiny.yaml")
    for name, count, seed in (("train", 48, 1), ("dev", 16, 2), ("new", 5, 4)):
        with open(folder / f"{name}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["text", "label"], *([row["text"], row["label"]] for row in rows(count, seed))])
    (folder / "bin").mkdir()
    (folder / "bin" / "bertsmith").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m bertsmith "$@"\n')
    (folder / "bin" / "bertsmith").chmod(0o755)
    block = "\n".join(re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL))
    assert block.count("--student bert-tiny") == 1
    block = block.replace("--student bert-tiny", "--student tiny.yaml")
    block = "\n".join(line for line in block.splitlines() if not line.startswith("python benchmarks/"))
    environment = {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    command = ["bash", "-euo", "pipefail", "-c", block]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "this run is finished already" in done.stderr
    return folder


def test_the_students_are_smaller_and_predict(folder: Path) -> None:
    shapes = {
        name: json.loads((folder / "runs" / name / "model" / "config.json").read_text(encoding="utf-8"))
        for name in ("teacher", "small", "more", "tiny")
    }
    assert {name: each["num_hidden_layers"] for name, each in shapes.items()} == {
        "teacher": 3,
        "small": 2,
        "more": 2,
        "tiny": 1,
    }
    assert len((folder / "predictions.jsonl").read_text(encoding="utf-8").splitlines()) == 5


def test_what_the_page_says_of_a_run_is_there(folder: Path) -> None:
    names = re.findall(r"^\| `(\w+)` \| `--\w+-weight", PAGE, re.MULTILINE)
    assert names == ["logits", "hidden"]
    lines = (folder / "runs" / "small" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert {"classify_loss", *(f"{name}_loss" for name in names)} <= json.loads(lines[0]).keys()
    assert (folder / "runs" / "more" / "augmented.jsonl").is_file()
    on_corpus = (folder / "runs" / "tiny" / "metrics.jsonl").read_text(encoding="utf-8")
    assert all(f'"{name}_loss"' in on_corpus for name in ("masked", "next_sentence", "hidden", "attention", "values"))
