"""The tables of docs/gpu.md are those that its commands print of the stored rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_pages import ROOT, blocks, page, ran

PAGE = page("gpu.md")
INFERENCE = "Inference: SQuAD's head, from ids to scores on the host, every sequence of the whole length"
COMMANDS = blocks(PAGE)[0].splitlines()


def shown(part: str) -> bool:
    """Whether the page has every line of a table."""
    lines = PAGE.splitlines()
    return all(f"    {line}".rstrip() in lines for line in part.splitlines())


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[-1])
def test_the_tables_are_those_of_the_stored_rows(command: str, tmp_path: Path) -> None:
    words = [str(ROOT / each) if each.startswith("benchmarks/") else each for each in command.split()]
    tables = ran(tmp_path, *words).stdout.rstrip().split("\n\n")
    tables = tables[1:] if "--show" in command else tables  # the command and the machine come before
    found = [part for part in tables if shown(part)]
    if "first" in command:
        assert {part.partition("\n")[0] for part in found} >= {"A pre-training step", INFERENCE}
    else:
        assert found == tables
