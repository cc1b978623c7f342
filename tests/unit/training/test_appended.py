"""A file that a run appends to, while other programs remove it, put another in its place, or write to it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import pytest

from bertsmith.base.errors import BertsmithError
from bertsmith.training.records.appended import AppendedFile


def replaced(path: Path) -> None:
    path.with_name("other").write_text("theirs\n")
    os.replace(path.with_name("other"), path)


@pytest.mark.parametrize("change", [Path.unlink, replaced])
def test_what_was_removed_or_replaced_is_there_again_once_it_is_synced(
    tmp_path: Path, said: pytest.LogCaptureFixture, change: Callable[[Path], None]
) -> None:
    path = tmp_path / "lines"
    path.write_text("before\n")
    file = AppendedFile(path)
    for number in (1, 2):
        file.write(b"%d\n" % number)
        change(path)
        file.write(b"and\n")
        file.sync()
    file.write(b"end\n")
    file.close()
    assert path.read_text() == "before\n1\nand\n2\nand\nend\n"
    others = {each.name: each.read_text() for each in tmp_path.glob("*.other-*")}
    kept = {"lines.other-1": "theirs\n", "lines.other-2": "theirs\n"}
    assert others == (kept if change is replaced else {})
    assert len(said.messages) == 2, "one warning for each"


def test_what_a_disk_takes_in_parts_is_all_there(tmp_path: Path) -> None:
    class InParts:
        def __init__(self, file: BinaryIO) -> None:
            self._file, self.fileno, self.close = file, file.fileno, file.close

        def write(self, data: bytes) -> int:
            return self._file.write(data[:3])

    file = AppendedFile(tmp_path / "lines")
    file._file = InParts(file._file)
    for data in (b"a line\n", b"another\n"):
        file.write(data)
    file.close()
    assert (tmp_path / "lines").read_bytes() == b"a line\nanother\n"


@pytest.mark.parametrize("content", ["", "before\n1\nadded by hand\n"])
def test_what_was_written_to_in_place_is_warned_of_once(
    tmp_path: Path, said: pytest.LogCaptureFixture, content: str
) -> None:
    path = tmp_path / "lines"
    path.write_text("before\n")
    file = AppendedFile(path)
    file.write(b"1\n")
    file.sync()
    assert said.messages == []
    path.write_text(content)
    file.write(b"2\n")
    file.sync()
    file.close()
    assert path.read_text() == f"{content}2\n"
    (warning,) = said.messages
    assert warning == (
        f"warning: another program has written to {path}, where 11 bytes were and {len(content) + 2} are: lines may be "
        "lost"
    )


def test_a_full_disk_leaves_the_other_file_and_no_copies_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lines"
    file = AppendedFile(path)
    file.write(b"ours\n")
    replaced(path)

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("shutil.copyfileobj", refuse)
        for _ in range(2):
            with pytest.raises(BertsmithError, match="No space left"):
                file.sync()
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {"lines": "theirs\n"}
    file.close()
    assert path.read_text() == "ours\n"


def test_nothing_is_put_back_where_that_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lines"

    def refuse() -> None:
        raise BertsmithError("this folder is another run's now")

    file = AppendedFile(path, refuse)
    file.write(b"ours\n")
    file.sync()
    replaced(path)
    with pytest.raises(BertsmithError, match="another run's"):
        file.close()
    assert path.read_text() == "theirs\n"
