"""Open files whose place others have changed meanwhile."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from bertsmith.base import files


@pytest.mark.parametrize("change", ["removed", "replaced", "its folder is a file"])
def test_an_open_file_that_is_not_at_its_place_any_more_is_known(tmp_path: Path, change: str) -> None:
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    with files.open_to_append(path) as file:
        assert files.is_at(file, path)
        path.unlink()
        if change == "replaced":
            other = tmp_path / "other"
            other.touch()
            other.rename(path)
        elif change == "its folder is a file":
            path.parent.rmdir()
            path.parent.touch()
        assert not files.is_at(file, path)


def test_an_open_file_that_its_server_knows_no_more_is_not_at_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ESTALE, "Stale file handle")

    with files.open_to_append(tmp_path / "file") as file:
        with monkeypatch.context() as stale:
            stale.setattr(files.os, "fstat", refuse)
            there = files.is_at(file, tmp_path / "file")
        assert not there
