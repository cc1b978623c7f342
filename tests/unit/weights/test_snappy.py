"""Unpacking Snappy: what was packed comes back, and damage is an error of one kind."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertsmith.weights.tensorflow.snappy import unpacked
from made_bundle import pack_snappy

TEXTS = st.lists(st.sampled_from([b"bert/", b"layer_", b"kernel", b"\0", b"a", bytes(range(90))]), max_size=60)


@given(TEXTS.map(b"".join))
def test_there_and_back(data):
    assert unpacked(pack_snappy(data)) == data


def test_every_kind_of_element():
    far = bytes(range(256)) * 9
    packed = (
        bytes([0x80 | (3000 & 127), 3000 >> 7])
        + bytes([61 << 2, 2303 & 255, 2303 >> 8])
        + far  # a literal whose length takes two bytes
        + bytes([1 | (11 - 4) << 2 | 7 << 5, 0xF7])  # 11 bytes from 2,039 back
        + bytes([2 | 63 << 2, 0x00, 0x09]) * 10  # 64 from 2,304 back
        + bytes([3 | 34 << 2, 1, 0, 0, 0])  # the last byte 35 times
        + bytes([(10 - 1) << 2])
        + b"0123456789"
    )
    out = bytearray(far)
    for offset, length in [(2039, 11), *[(2304, 64)] * 10, (1, 35)]:
        for _ in range(length):
            out.append(out[-offset])
    out += b"0123456789"
    assert len(out) == 3000
    assert unpacked(packed) == bytes(out)


@given(TEXTS.map(b"".join), st.data())
def test_damage_is_a_value_error_or_nothing(data, draw):
    packed = bytearray(pack_snappy(data))
    packed[draw.draw(st.integers(0, len(packed) - 1))] ^= 1 << draw.draw(st.integers(0, 7))
    with contextlib.suppress(ValueError):
        unpacked(bytes(packed[: draw.draw(st.integers(0, len(packed)))]))


@pytest.mark.parametrize(
    ("packed", "reason"),
    [
        (b"\x05\x08abc", "has 3 bytes and claims 5"),
        (b"\x05\x10ab", "cut off"),
        (b"\x05\x01\x01", "from nowhere"),
        (b"\x08\x00a\x09\x02", "from nowhere"),
        (b"\x08\x00a\x09", "from nowhere"),
        (b"\xff\xff\xff\xff\x0f", "claims 4,294,967,295"),
        (b"\xff" * 11, "no end"),
    ],
)
def test_known_damage(packed, reason):
    with pytest.raises(ValueError, match=reason):
        unpacked(packed)
