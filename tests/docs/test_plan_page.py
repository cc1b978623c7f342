"""The commands of docs/plan.md, but for a smaller model, and its table, which is what `plan --calibration` prints."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from bertsmith.training.planning.calibration import calibration_lines, predicted
from made_pages import blocks, page, typed_here, write_table
from made_rows import made_model, rows
from made_runs import small_corpus

(COMMANDS,) = blocks(page("plan.md"))


def test_the_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(small_corpus(), tmp_path / "corpus")
    made_model(tmp_path / "runs" / "base")
    write_table(tmp_path / "train.csv", rows(40, 1))
    write_table(tmp_path / "dev.csv", rows(20, 2))
    said = typed_here(COMMANDS.replace("bert-mini", "bert-tiny")).stdout
    assert said.count("memory of a rank, at its peak") == 3
    assert (tmp_path / "plan.png").is_file()
    assert json.loads((tmp_path / "plan.json").read_text())["money"] > 0


def test_the_table_of_nvidias_rows_is_what_is_printed() -> None:
    text = page("plan.md").splitlines()
    for line in calibration_lines(predicted()):
        assert not line or f"    {line}" in text
