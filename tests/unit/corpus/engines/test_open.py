"""The tasks of one array are of one version."""

from __future__ import annotations

from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.engines.open import open_engine


def test_tasks_of_an_array_of_other_versions_refuse_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_engine(tmp_path, "plan", "local", None, "1/2", 1):
        with open_engine(tmp_path, "plan", "local", None, "2/2", 1):
            pass
        monkeypatch.setattr("bertsmith.corpus.engines.open.versions", lambda: (("Python", "another"),))
        with (
            pytest.raises(BertsmithError, match="other sources, options, files or versions"),
            open_engine(tmp_path, "plan", "local", None, "2/2", 1),
        ):
            pass
