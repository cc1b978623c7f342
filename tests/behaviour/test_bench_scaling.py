"""The bench of two ranks beside one: every way of sharing a step is measured, and the bytes are those of the model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bertsmith.cli import main


@pytest.mark.slow
def test_every_way_of_sharing_a_step_has_its_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "scaling", "--quick", "--json", str(tmp_path / "rows.json")]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())["rows"]
    ways = ["2 ranks, replicate", "2 ranks, replicate, without overlap", "2 ranks, shard"]
    assert [(row["case"], row["micro_batches"]) for row in rows] == [(way, each) for each in (1, 4) for way in ways]
    assert all(row["seconds"] > 0 and row["strong"] > 0 and row["weak"] > 0 for row in rows)
    assert all(row["sums"]["seconds"] > 0 for row in rows)
    replicate, without, shard, _, _, longer = rows
    # Gradients in fp32 and a flag for each rank, which two ranks in a ring send once.
    assert replicate["sums"]["bytes"] == without["sums"]["bytes"] == 4 * (2_125_500 + 2)
    assert replicate["gathers"]["bytes"] == 0
    # A sharded sum and a gather are half of it. What is outside of layers is gathered once a step.
    assert 0.5 < shard["sums"]["bytes"] / replicate["sums"]["bytes"] < 0.52
    assert longer["sums"] == {**shard["sums"], "seconds": longer["sums"]["seconds"]}
    # Of two layers, before the forward and before the backward pass, in bf16 or fp32.
    more = (longer["gathers"]["bytes"] - shard["gathers"]["bytes"]) / 3
    assert more in [2 * 2 * (4 * 64 * 64 + 2 * 64 * 256) * width / 2 for width in (2, 4)]
    printed = capsys.readouterr().out
    assert all(way in printed for way in ways)
