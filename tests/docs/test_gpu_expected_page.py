"""The commands of docs/gpu-expected.md, run on a tiny model; and its tables are those of the stored rows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from made_pages import ROOT, blocks, page, ran, typed

PAGE = page("gpu-expected.md")
(COMMANDS,) = blocks(PAGE)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_commands_run(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    small = COMMANDS.replace(" run ", " run --models tiny --lengths 128 --tokens 512 ")
    said = typed(tmp_path, small).stdout
    assert "tiny, 4 full at 128, attention dropout" in said
    assert typed(tmp_path, small.splitlines()[0]).stdout == "", "what is there is not counted again"


def test_the_tables_are_those_of_the_stored_rows(tmp_path: Path) -> None:
    rows = ROOT / "benchmarks" / "results" / "gpu-expected.json"
    said = ran(tmp_path, "python", str(ROOT / "benchmarks" / "gpu_expected.py"), "table", str(rows)).stdout
    lines = PAGE.splitlines()
    for line in said.splitlines():
        assert not line or f"    {line}" in lines
