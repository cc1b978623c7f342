"""The files of a zip: where they go, what is damage, and what is not written over."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.download import fetch as fetch_module
from bertsmith.download.unpack import WrongZip, unpack
from made_server import zipped

MEMBERS = {"vocab.txt": b"[PAD]\n[UNK]\n" * 50, "model.ckpt.index": bytes(range(256)) * 4}


def test_a_zip_is_unpacked_without_the_folder_around_it_and_without_litter(tmp_path, said):
    members = {"CoLA/train.tsv": b"1", "CoLA/original/x": b"2", "__MACOSX/CoLA/._x": b"3"}
    (tmp_path / "a.zip").write_bytes(zipped(members))
    (tmp_path / "out").mkdir()
    unpack(tmp_path / "a.zip", tmp_path / "out")
    found = {path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert found == {"train.tsv", "original/x"}
    (tmp_path / "out" / "original" / "x").unlink()
    said.clear()
    unpack(tmp_path / "a.zip", tmp_path / "out")
    assert "a.zip: 1 of 2 files unpacked" in said.text
    assert "1 file of the archiver's own left out" in said.text
    assert (tmp_path / "out" / "original" / "x").read_bytes() == b"2"


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x", "/etc/x", "\\etc\\x", "..\\x"])
def test_a_zip_cannot_write_outside_its_folder(tmp_path, name):
    (tmp_path / "a.zip").write_bytes(zipped({"vocab.txt": b"[PAD]", name: b"outside"}))
    with pytest.raises(BertsmithError, match="would write outside its folder"):
        unpack(tmp_path / "a.zip", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


@pytest.mark.parametrize(("begin", "end"), [(-30, 999), (60, 90), (0, 10)])
def test_a_damaged_zip_is_said(tmp_path, begin, end):
    """Cut off, or without some bytes of a member or of what stands before it, by which its places are negative."""
    whole = zipped({"a": bytes(range(100))})
    (tmp_path / "a.zip").write_bytes(whole[:begin] + whole[end:])
    with pytest.raises(WrongZip, match="damaged"):
        unpack(tmp_path / "a.zip", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["a.zip"]


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, len(zipped(MEMBERS)) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_is_an_error_or_changes_nothing(place, bit, tmp_path_factory):
    """A zip without any published checksum: what is unpacked is what was packed."""
    folder, content = tmp_path_factory.mktemp("flip"), bytearray(zipped(MEMBERS))
    content[place] ^= 1 << bit
    (folder / "x.zip").write_bytes(content)
    (folder / "out").mkdir()
    with contextlib.suppress(BertsmithError):
        unpack(folder / "x.zip", folder / "out", dict.fromkeys(MEMBERS, ""))
    for path in (folder / "out").rglob("*"):
        assert path.is_dir() or path.read_bytes() == MEMBERS[path.name]


def test_two_members_of_one_name_are_refused(tmp_path):
    (tmp_path / "x.zip").write_bytes(zipped({"a/x": b"one", "a\\x": b"two", "b": b""}))
    with pytest.raises(BertsmithError, match="two files of one name"):
        unpack(tmp_path / "x.zip", tmp_path / "out")


@pytest.mark.parametrize(("place", "value"), [(10, 12), (10, 14), (10, 99), (8, 1)])
def test_another_method_of_packing_is_damage(tmp_path, place, value):
    """And so is a member that is said to be encrypted."""
    (tmp_path / "out").mkdir()
    content = bytearray(zipped({"vocab.txt": b"[PAD]" * 50}))
    content[content.index(b"PK\x01\x02") + place] = value
    (tmp_path / "x.zip").write_bytes(content)
    with pytest.raises(BertsmithError, match="damaged"):
        unpack(tmp_path / "x.zip", tmp_path / "out")


def test_a_file_of_yours_is_not_written_over(tmp_path):
    (tmp_path / "x.zip").write_bytes(zipped({"vocab.txt": b"[PAD]", "more.txt": b"more"}))
    (tmp_path / "out").mkdir()
    unpack(tmp_path / "x.zip", tmp_path / "out")
    (tmp_path / "out" / "more.txt").unlink()
    (tmp_path / "out" / "vocab.txt").write_text("mine")
    with pytest.raises(BertsmithError, match=r"1 file of this zip already there with other bytes.*vocab\.txt"):
        unpack(tmp_path / "x.zip", tmp_path / "out")
    assert (tmp_path / "out" / "vocab.txt").read_text() == "mine"


def test_a_disk_that_is_too_small_is_told_before_anything_is_unpacked(tmp_path, monkeypatch):
    (tmp_path / "x.zip").write_bytes(zipped({"vocab.txt": bytes(3_000_000), "more.txt": b"more"}))
    (tmp_path / "out").mkdir()
    monkeypatch.setattr(fetch_module.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 1_000_000}))
    with pytest.raises(BertsmithError, match=r"unpacking needs 3\.0 MB of disk, only 1\.0 MB is free"):
        unpack(tmp_path / "x.zip", tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
