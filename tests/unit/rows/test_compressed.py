"""Packed files: members, padding, and all that can be had of a file that is damaged."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.base.errors import BertsmithError
from bertsmith.rows import compressed as codecs
from bertsmith.rows.compressed import damage_of, open_bytes, packing, peek

TEXT = b"".join(b"line %d of a text, %d\n" % (n, n * 7919 % 10007) for n in range(20_000))
SKIPPED = b"\x5a\x2a\x4d\x18\x04\x00\x00\x00skip"


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda data: gzip.compress(data, mtime=0),
    "bz2": bz2.compress,
    "xz": lambda data: lzma.compress(data, preset=1),
    "zst": zst,
}


def read(path: Path, codec: str) -> tuple[bytes, str]:
    with open_bytes(path, codec) as file:
        return file.read(), damage_of(file)


def test_every_packing_is_known_here() -> None:
    assert set(PACKERS) == set(codecs.MAGIC)


@pytest.mark.parametrize("codec", sorted(PACKERS))
def test_members_one_behind_the_other_are_one_stream(tmp_path: Path, codec: str) -> None:
    pack, path = PACKERS[codec], tmp_path / "a"
    path.write_bytes(pack(TEXT[:1000]) + pack(b"") + pack(TEXT[1000:]) + bytes(12))
    assert packing(peek(path, "", 8)) == codec
    assert read(path, codec) == (TEXT, "")
    assert peek(path, codec, 1500) == TEXT[:1500]


@pytest.mark.parametrize("codec", sorted(PACKERS))
def test_members_are_told_wherever_a_read_ends(tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_INPUT", "_ZST_INPUT"):
        monkeypatch.setattr(codecs, name, 1)
    pack, path = PACKERS[codec], tmp_path / "a"
    path.write_bytes(pack(b"one, ") + pack(b"two") + bytes(3) + pack(b" and three"))
    assert read(path, codec) == (b"one, two and three", "")


def test_frames_to_be_skipped_are_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(SKIPPED + zst(TEXT) + SKIPPED + zst(b"end"))
    assert packing(peek(path, "", 8)) == "zst"
    assert read(path, "zst") == (TEXT + b"end", "")


def test_a_frame_with_a_long_window_is_read(tmp_path: Path) -> None:
    """256 MB, of `zstd --ultra --long=28`, which zstd refuses unless it is allowed. Written by hand: packing with such
    a window takes as much memory."""
    path = tmp_path / "a"
    header, window, one_raw_block_of_5 = b"\x28\xb5\x2f\xfd\x00", b"\x90", b"\x29\x00\x00"
    path.write_bytes(header + window + one_raw_block_of_5 + b"words")
    assert read(path, "zst") == (b"words", "")


def test_damage_costs_no_more_of_the_text_before_it_than_a_step(tmp_path: Path) -> None:
    path, packer, no_block = tmp_path / "a", zlib.compressobj(wbits=31), b"\x07"
    path.write_bytes(packer.compress(TEXT) + packer.flush(zlib.Z_FULL_FLUSH) + no_block)
    with open_bytes(path, "gz") as file:
        found = b"".join(file)  # by lines, for which more is unpacked at once
        assert "invalid block type" in damage_of(file)
    assert TEXT.startswith(found)
    assert len(found) >= len(TEXT) - (1 << 14)


@pytest.mark.parametrize("codec", sorted(PACKERS))
def test_bytes_that_are_not_packed_are_damage(tmp_path: Path, codec: str) -> None:
    path = tmp_path / "a"
    path.write_bytes(PACKERS[codec](TEXT) + b"something else")
    found, damage = read(path, codec)
    assert found == TEXT
    assert "not compressed" in damage


@pytest.mark.parametrize("codec", sorted(PACKERS))
def test_a_file_cut_anywhere_gives_the_beginning_of_its_text(
    codec: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    packed, path = PACKERS[codec](TEXT), tmp_path_factory.mktemp("cut") / "a"

    @settings(max_examples=40, deadline=None)
    @given(st.integers(0, len(packed) - 1))
    def check(cut: int) -> None:
        path.write_bytes(packed[:cut])
        found, damage = read(path, codec)
        assert TEXT.startswith(found)
        assert damage == "it ends before its end mark"

    check()
    path.write_bytes(packed[: len(packed) * 9 // 10])
    least = {"gz": 0.8, "xz": 0.8, "zst": 0.5, "bz2": 0.0}[codec]  # a block of bz2 is 900 kB: all of this text
    assert len(read(path, codec)[0]) >= least * len(TEXT)


@pytest.mark.parametrize("codec", sorted(PACKERS))
def test_a_flipped_bit_is_found(tmp_path: Path, codec: str) -> None:
    packed, path = bytearray(PACKERS[codec](TEXT)), tmp_path / "a"
    packed[len(packed) // 2] ^= 16
    path.write_bytes(packed)
    found, damage = read(path, codec)
    assert damage
    assert found[:1000] == TEXT[:1000] or codec in ("bz2", "zst")


def test_a_missing_library_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.zst"
    path.write_bytes(zst(TEXT))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(BertsmithError) as caught:
        open_bytes(path, "zst")
    assert "pip install 'bertsmith[zstd]'" in caught.value.fix
    assert str(path) in caught.value.where
