"""Open files whose place others have changed meanwhile, and what cannot be removed."""

from __future__ import annotations

import errno
import os
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


def test_what_the_disk_does_not_let_go_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: object, **more: object) -> None:
        raise OSError(errno.EBUSY, "busy")

    for name in ("leftover", "run"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(os, "rmdir", refuse)
    files.clear(tmp_path / "leftover")
    files.remove_folder(tmp_path / "run")
    files.clear(tmp_path / "none")
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 2
    assert warned[0].startswith(f"warning: {tmp_path / 'leftover'} could not be removed (busy): remove it by")
    assert warned[1].startswith(f"warning: {tmp_path / '.run.'}")
    assert ".part could not be removed (busy): remove it by hand" in warned[1]
    monkeypatch.undo()
    (tmp_path / "link").symlink_to(tmp_path / "leftover")
    files.remove_folder(tmp_path / "link")
    assert (tmp_path / "leftover").is_dir()
    assert not (tmp_path / "link").is_symlink()
