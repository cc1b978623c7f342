"""The commands of docs/gpu-expected.md, run on a tiny model; and its tables are those of the stored rows."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from made_commands import called
from made_pages import ROOT, blocks, page, typed

PAGE = page("gpu-expected.md")
(COMMANDS,) = blocks(PAGE)


@pytest.mark.slow
@pytest.mark.timeout(1500)  # a compiler's work, on a machine that may be busy
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_the_commands_run(tmp_path: Path) -> None:
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    small = COMMANDS.replace(" run ", " run --models tiny --lengths 128 --tokens 512 ")
    said = typed(tmp_path, small).stdout
    assert "tiny, 4 full at 128, attention dropout" in said
    assert typed(tmp_path, small.splitlines()[0]).stdout == "", "what is there is not counted again"


def test_the_tables_are_those_of_the_stored_rows(
    script: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stored = ROOT / "benchmarks" / "results" / "gpu-expected.json"
    called(script("gpu_expected"), monkeypatch, "table", stored)
    said = capsys.readouterr().out
    lines = PAGE.splitlines()
    assert len(said) > 1000
    for line in said.splitlines():
        assert not line or f"    {line}" in lines
