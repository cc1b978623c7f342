"""The commands of docs/report.md, run as they stand, over small runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from made_pages import blocks, page, typed_here
from made_reports import Parsed, train_record, write_run

PAGE = page("report.md")


def test_the_commands_make_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, identity in (("first", {}), ("second", {}), ("labels", {"task": "classify"})):
        write_run(tmp_path / "runs" / name, [train_record(step) for step in range(1, 9)], **identity)
    done = typed_here("\n".join(blocks(PAGE)))
    assert done.stdout.split() == ["first.html", "both.html", "labels.html"]
    assert "report: 2 runs, " in done.stderr
    for name in done.stdout.split():
        assert "Final figures" in Parsed((tmp_path / name).read_text(encoding="utf-8")).tables
