"""The page on recipes: its recipe is one, its commands run, and its tables have what there is."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from bertsmith.recipes.loader import load_recipe, presets
from bertsmith.recipes.schema import Phase
from made_pages import blocks, page, typed_here
from made_runs import small_corpus

PAGE = page("recipes.md")


@pytest.mark.usefixtures("no_figures")
def test_its_recipe_and_its_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (mine,) = blocks(PAGE, "yaml")
    (tmp_path / "mine.yaml").write_text(mine, encoding="utf-8")
    shutil.copytree(small_corpus(), tmp_path / "corpus")
    own, check, budget = blocks(PAGE)
    small = "--model.layers 1 --model.hidden 32 --model.heads 2 --evaluate-instances 16"
    assert "fit together" in typed_here(f"{check.strip()} --phase2.sequence-length 128\n").stdout
    said = typed_here(budget.splitlines()[0]).stderr
    assert "model: 24 layers of 1024 (24 hours at 395.80 TFLOP/s" in said
    for command in (own, budget.splitlines()[1]):
        typed_here(f"{command.strip()} {small}\n")
    assert load_recipe(tmp_path / "runs" / "mine" / "recipe.yaml").objective == "mlm"
    assert load_recipe(tmp_path / "runs" / "budget" / "recipe.yaml").hours == 0.001
    for name in ("mine", "budget"):
        assert (tmp_path / "runs" / name / "model" / "model.safetensors").is_file()


def test_its_tables_are_complete() -> None:
    named = re.findall(r"^\| (`.*?`) \|", PAGE, re.MULTILINE)
    words = {word for cell in named for word in re.findall(r"`([\w-]+)`", cell)}
    assert words == {*presets(), *get_args(get_type_hints(Phase)["schedule"]), "schedule"}
