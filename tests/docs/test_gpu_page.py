"""The tables of docs/gpu.md are those that its commands print of the stored rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from made_commands import called
from made_pages import ROOT, blocks, page

PAGE = page("gpu.md")
INFERENCE = "Inference: SQuAD's head, from ids to scores on the host, every sequence of the whole length"
COMMANDS = blocks(PAGE)[0].splitlines()


def shown(part: str) -> bool:
    """Whether the page has every line of a table."""
    lines = PAGE.splitlines()
    return all(f"    {line}".rstrip() in lines for line in part.splitlines())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[-1])
def test_the_tables_are_those_of_the_stored_rows(
    command: str,
    script: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    python, program, *words = command.split()
    assert (python, Path(program).parent) == ("python", Path("benchmarks"))
    monkeypatch.chdir(ROOT)
    assert not called(script(Path(program).stem), monkeypatch, *words)
    tables = capsys.readouterr().out.rstrip().split("\n\n")
    tables = tables[1:] if "--show" in command else tables  # the command and the machine come before
    found = [part for part in tables if shown(part)]
    if "first" in command:
        assert {part.partition("\n")[0] for part in found} >= {"A pre-training step", INFERENCE}
    else:
        assert found == tables
