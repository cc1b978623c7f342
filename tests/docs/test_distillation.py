"""The commands of docs/distillation.md, run as they stand; only the recipe of the student on a corpus is made small."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from bertsmith.model.initial import initialise
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.training.shape import config_of
from bertsmith.weights.huggingface import save_pretraining_model
from made_pages import blocks, page, typed, write_table
from made_rows import rows
from made_runs import corpus, save_recipe, small_corpus, small_recipe

PAGE = page("distillation.md")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, a corpus and a run with a model of its vocabulary, with which the page's commands were run."""
    folder = tmp_path_factory.mktemp("page")
    special, shape = corpus().special, small_recipe(model__layers=3).model
    model = PretrainingModel(config_of(shape, special.vocabulary_size, special.pad))
    initialise(model, 0.1, seed=0)
    save_pretraining_model(model, small_corpus() / "tokenizer", folder / "runs" / "mini" / "model")
    shutil.copytree(small_corpus(), folder / "corpus")
    save_recipe(small_recipe(model__layers=1), folder / "tiny.yaml")
    for name, count, seed in (("train", 48, 1), ("dev", 16, 2), ("new", 5, 4)):
        write_table(folder / f"{name}.csv", rows(count, seed))
    block = "\n".join(blocks(PAGE))
    assert block.count("--student bert-tiny") == 1
    block = block.replace("--student bert-tiny", "--student tiny.yaml")
    block = "\n".join(line for line in block.splitlines() if not line.startswith("python benchmarks/"))
    assert "this run is finished already" in typed(folder, block).stderr
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
