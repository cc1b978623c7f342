"""Ranks that see one folder share its work; those that do not, do all of it."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from bertsmith.base import files
from bertsmith.batches import shares
from bertsmith.batches.shares import Share, agree


def agreed(folders: Sequence[Path]) -> list[Share]:
    """What ranks agree on that call their folders so, each in a thread of its own."""
    told: list[Any] = [None] * len(folders)
    together = threading.Barrier(len(folders))

    def gathered_by(rank: int) -> Callable[[Any], list[Any]]:
        def gathered(value: Any) -> list[Any]:
            told[rank] = value
            together.wait(60)
            found = list(told)
            together.wait(60)
            return found

        return gathered

    with ThreadPoolExecutor(len(folders)) as pool:
        return list(pool.map(agree, folders, [gathered_by(rank) for rank in range(len(folders))]))


def test_ranks_on_one_disk_share_the_work(tmp_path: Path) -> None:
    found = agreed([tmp_path / "order"] * 3)
    assert found == [Share(tmp_path / "order", place, 3) for place in range(3)]
    assert [each.leads for each in found] == [True, False, False]
    assert not list((tmp_path / "order").iterdir()), "no mark is left"


def test_what_killed_runs_have_left_is_cleared_after_an_hour(tmp_path: Path) -> None:
    other, kept = "epoch-1-ab", [tmp_path / "epoch-0-ab.npy", tmp_path / "epoch-1-ab" / "00001.npy"]
    left = [tmp_path / name for name in (".epoch-0-ab.npy.7-c.part", ".seen-12", "..seen-3.7-c.part")]
    left += [tmp_path / other / ".00000.npy.7-c.part"]
    new = [each.with_name(f"{each.name.removesuffix('.part')}d.part") for each in left]
    (tmp_path / other).mkdir()
    for path in (*kept, *left, *new):
        path.touch()
    for path in (*kept, *left):
        os.utime(path, (time.time() - 4000,) * 2)
    agreed([tmp_path] * 2)
    assert {path for path in tmp_path.rglob("*") if path.is_file()} == {*kept, *new}


@pytest.mark.parametrize("places", [1, 2, 3, 7])
def test_every_part_is_made_once(places: int) -> None:
    parts = list(range(5))
    assert sorted(part for place in range(places) for part in Share(None, place, places).of(parts)) == parts
    assert list(Share(None, None, places).of(parts)) == []


def test_a_copy_of_the_corpus_on_every_host_is_worked_on_by_its_own_ranks(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    found = agreed([one, two, one, two])
    assert found == [Share(one, 0, 2), Share(two, 0, 2), Share(one, 1, 2), Share(two, 1, 2)]


def test_a_disk_may_have_another_name_on_another_host(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "mounted").symlink_to(tmp_path / "real")
    assert agreed([tmp_path / "real", tmp_path / "mounted"]) == [
        Share(tmp_path / "real", 0, 2),
        Share(tmp_path / "mounted", 1, 2),
    ]


def test_a_rank_that_may_only_read_gets_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "read-only").symlink_to(tmp_path / "real")
    write = files.write_text

    def write_text(path: Path, text: str) -> None:
        if path.parent.name == "read-only":
            raise PermissionError(path)
        write(path, text)

    monkeypatch.setattr(files, "write_text", write_text)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert agreed([tmp_path / "read-only", tmp_path / "real", tmp_path / "real"]) == [
        Share(tmp_path / "read-only", None, 2),
        Share(tmp_path / "real", 0, 2),
        Share(tmp_path / "real", 1, 2),
    ]
    assert {path.name for path in tmp_path.iterdir()} == {"real", "read-only"}, "no temporary folder is left"


def test_where_nobody_may_write_a_temporary_folder_is_shared_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "file").write_text("in the way")
    first, second = agreed([tmp_path / "file" / "order"] * 2)
    assert first.folder is not None
    assert first.folder.is_dir()
    assert (first, second) == (Share(first.folder, 0, 2, temporary=True), Share(first.folder, 1, 2))
    assert caplog.text.count("cannot be written to") == 1
    assert list(tmp_path.glob("bertsmith-order-*")) == [first.folder]
    second.close()
    assert list(first.folder.iterdir()) == []
    first.close()
    assert not first.folder.exists()


def test_where_nothing_can_be_written_it_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(prefix: str) -> str:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shares.tempfile, "mkdtemp", refused)
    (tmp_path / "file").write_text("in the way")
    assert agreed([tmp_path / "file" / "order"]) == [Share(None)]
    assert "cannot be kept" in caplog.text
