"""The bench of two ranks beside one: every way of sharing a step is measured, and the bytes are those of the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertsmith.cli import main


@pytest.mark.slow
def test_every_way_of_sharing_a_step_has_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scaling", "--quick", "--json", str(tmp_path / "rows.json")]) == 0
    *rows, alone = json.loads((tmp_path / "rows.json").read_text())["rows"]
    ways = ["2 ranks, replicate", "2 ranks, replicate, without overlap", "2 ranks, shard"]
    assert [(row["case"], row["micro_batches"]) for row in rows] == [(way, each) for each in (1, 4) for way in ways]
    assert all(row["seconds"] > 0 and row["strong"] > 0 and row["weak"] > 0 for row in rows)
    assert (alone["bytes"], alone["seconds"] > 0) == (4 * 2_125_500, True)
    printed = capsys.readouterr().out
    assert all(way in printed for way in ways)
