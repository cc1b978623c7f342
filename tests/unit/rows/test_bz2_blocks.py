"""A bz2 file read from anywhere: the blocks of adjoining ranges are the whole, damage costs one block."""

from __future__ import annotations

import bz2
import io
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.rows import bz2_blocks
from bertsmith.rows.bz2_blocks import blocks_from

# Three blocks and more in one stream, at any bit: level 1 has blocks of 100 kB.
NOISE = random.Random(3).randbytes(350_000)
LONG = bz2.compress(NOISE, 1)


def unpacked(packed: bytes, begin: int = 0, end: int | None = None) -> bytes:
    blocks = [block for block in blocks_from(io.BytesIO(packed), begin) if end is None or block.byte < end]
    assert all(block.data is not None for block in blocks)
    return b"".join(block.data or b"" for block in blocks)


@settings(max_examples=60, deadline=None)
@given(
    texts=st.lists(st.tuples(st.binary(max_size=300), st.integers(1, 9)), min_size=1, max_size=5),
    cuts=st.lists(st.integers(1, 2000), max_size=3),
)
def test_streams_behind_each_other_in_any_ranges(texts: list[tuple[bytes, int]], cuts: list[int]) -> None:
    packed = b"".join(bz2.compress(*each) for each in texts)
    edges = [0, *sorted(set(cuts)), None]
    found = b"".join(unpacked(packed, begin or 0, end) for begin, end in itertools.pairwise(edges))
    assert found == b"".join(text for text, _ in texts)


def test_one_stream_of_many_blocks_is_cut_at_any_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    bytes_of = [block.byte for block in blocks_from(io.BytesIO(LONG), 0)]
    assert len(bytes_of) == 4
    for cut in (bytes_of[1] - 1, bytes_of[1], bytes_of[1] + 1, len(LONG) // 2):
        assert unpacked(LONG, 0, cut) + unpacked(LONG, cut) == NOISE
    for size in (1000, 7919, 100_003):  # marks that lie across the borders of what is read at once
        monkeypatch.setattr(bz2_blocks, "_READ_BYTES", size)
        assert unpacked(LONG) == NOISE
    monkeypatch.setattr(bz2_blocks, "_READ_BYTES", 1)
    assert unpacked(bz2.compress(b"a") + bz2.compress(b"b")) == b"ab"


def test_damage_costs_the_block_it_is_in() -> None:
    second = [block.byte for block in blocks_from(io.BytesIO(LONG), 0)][1]
    broken = bytearray(LONG)
    broken[second + 500] ^= 16
    found = [block.data for block in blocks_from(io.BytesIO(bytes(broken)), 0)]
    assert [data is None for data in found] == [False, True, False, False]
    assert NOISE.startswith(found[0] or b"?")
    assert NOISE.endswith((found[2] or b"?") + (found[3] or b"?"))


def test_a_file_that_was_cut_short() -> None:
    third = [block.byte for block in blocks_from(io.BytesIO(LONG), 0)][2]
    found = [block.data for block in blocks_from(io.BytesIO(LONG[: third + 5000]), 0)]
    assert [data is None for data in found] == [False, False, True]
    assert list(blocks_from(io.BytesIO(b""), 0)) == list(blocks_from(io.BytesIO(b"BZh9"), 0)) == []


def test_a_mark_that_chance_wrote_into_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a mark is found within a block, the block goes on behind it."""
    marks = list(bz2_blocks._marks(io.BytesIO(LONG), 0))
    false = bz2_blocks._Mark(marks[1].bit + 4321, bz2_blocks._BLOCK)
    monkeypatch.setattr(bz2_blocks, "_marks", lambda file, begin: iter(sorted([*marks, false])))
    assert unpacked(LONG) == NOISE
