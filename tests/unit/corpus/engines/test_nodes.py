"""What nodes must have in common is compared on each, and what differs is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.corpus.engines.nodes import Common, check_node, versions


def test_the_drivers_own_node_fits(tmp_path: Path) -> None:
    common = Common.here(tmp_path / "work" / "seen", "token")
    check_node(common)
    assert {"Python", "bertsmith", "tokenizers"} <= dict(versions()).keys()


def test_another_version_is_named(tmp_path: Path) -> None:
    common = Common.here(tmp_path / "seen", "token")
    other = tuple((name, "9.9" if name == "tokenizers" else version) for name, version in common.versions)
    with pytest.raises(BertsmithError, match=r"tokenizers \S+ there, 9\.9 at the driver") as caught:
        check_node(replace(common, versions=other))
    assert "on every node" in caught.value.fix
    assert "sentencex" not in caught.value.what


@pytest.mark.parametrize("there", [None, "another run's"])
def test_a_folder_that_a_node_does_not_see(tmp_path: Path, there: str | None) -> None:
    common = Common.here(tmp_path / "seen", "token")
    if there is None:
        common.seen.unlink()
    else:
        common.seen.write_text(there)
    with pytest.raises(BertsmithError, match="does not see the folder") as caught:
        check_node(common)
    assert caught.value.where == str(tmp_path)
    assert "mounts at the same path" in caught.value.fix
