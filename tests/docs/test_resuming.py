"""The page on resuming lists the settings that may change at a resume: all of them, and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bertsmith.tasks import finetune
from bertsmith.training import work

PAGE = Path(__file__).resolve().parents[2] / "docs" / "resuming.md"


@pytest.mark.parametrize(("verb", "free"), [("pretrain", work.FREE_FIELDS), ("finetune", finetune._FREE_SETTINGS)])
def test_the_table_lists_what_may_change(verb: str, free: tuple[str, ...]) -> None:
    (row,) = re.findall(rf"^\| `{verb}` \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", row)) == sorted(free)
