"""The checksum of TensorFlow's files, against its definition bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertsmith.weights.tensorflow import crc32c as module
from bertsmith.weights.tensorflow.crc32c import crc32c, masked_crc32c
from made_bundle import bitwise_crc32c, masked


def array(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


@pytest.mark.parametrize(
    ("data", "crc"),
    [  # RFC 3720, section B.4, and the check value of the catalogues
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_known_sums(data, crc):
    assert crc32c(array(data)) == crc == bitwise_crc32c(data)


@given(st.binary(max_size=300))
def test_short_data(data):
    assert crc32c(array(data)) == bitwise_crc32c(data)
    assert masked_crc32c(array(data)) == masked(data)


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([6776, 6777, 6778, 13554, 54216, 54217, 70001]))
def test_folded_data(seed, length):
    data = np.random.default_rng(seed).integers(0, 256, length, dtype=np.uint8)
    assert crc32c(data) == bitwise_crc32c(data.tobytes())


@pytest.mark.parametrize("extra", [0, 1, 8, 4093])
def test_pieces_change_nothing(extra, monkeypatch):
    data = np.random.default_rng(extra).integers(0, 256, 3 * module._PIECE_BYTES + extra, dtype=np.uint8)
    in_pieces = crc32c(data)
    monkeypatch.setattr(module, "_PIECE_BYTES", 1 << 30)
    assert crc32c(data) == in_pieces
    data[len(data) // 2] ^= 16
    assert crc32c(data) != in_pieces


def test_data_is_left_as_it_was():
    data = np.random.default_rng(1).integers(0, 256, 100_000, dtype=np.uint8)
    before = data.copy()
    crc32c(data)
    assert np.array_equal(data, before)
