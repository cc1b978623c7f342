"""CRC-32C (Castagnoli) in numpy, at the speed of memory and without a library of its own.

A CRC is the remainder of the message, read as a polynomial over GF(2), by a fixed polynomial P. Here the message is
first folded with a sparse multiple of P, which takes three XORs of whole arrays, until it is short; then the powers of
x at its set bits are XORed. The powers are kept as the usual register has them, reflected: bit 31 is the constant term.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78  # P without its leading term, reflected
# P divides x^6777 + x^484 + x^100 + 1, hence that of x^k, k any power of two: a unit of k bits (and a run of units)
# may be moved this many units on, three times. Its second term lies far below its first, so the runs are long.
_DEGREE = 6777
_SHIFTS = (_DEGREE - 484, _DEGREE - 100, _DEGREE)
# What brings the register from 0 to the ones that a CRC-32C begins with.
_START = np.frombuffer(bytes.fromhex("54641f64"), np.uint8)
_PIECE_BYTES = 1 << 20
_MASK_ADDEND = 0xA282EAD8


def crc32c(data: NDArray[np.uint8]) -> int:
    """The CRC-32C of bytes, as a number below 2^32."""
    # Zeros in front change nothing, so that the whole is made of 64-bit words.
    front = np.concatenate([np.zeros(-(len(data) + len(_START)) % 8, np.uint8), _START])
    cuts = [0, *range(len(data) % _PIECE_BYTES, len(data), _PIECE_BYTES), len(data)]
    for start, end in pairwise(cuts):
        words = np.concatenate([front, data[start:end]]).view(np.uint64)
        front = _folded(words).view(np.uint8)
    bits = np.unpackbits(_folded(front), bitorder="little")
    powers = _powers()[len(_powers()) - len(bits) :]
    return int(np.bitwise_xor.reduce(powers[bits.view(np.bool_)], initial=0)) ^ 0xFFFFFFFF


def masked_crc32c(data: NDArray[np.uint8]) -> int:
    """The CRC-32C as LevelDB and TensorFlow store it, so that the CRC of data that holds CRCs is still a good one."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_ADDEND) & 0xFFFFFFFF


def _folded(units: NDArray[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
    """At most _DEGREE units with the same remainder. Overwrites `units`."""
    stride = 1 << max(0, (len(units) // _DEGREE).bit_length() - 1)
    while stride:
        while len(units) > _DEGREE * stride:
            run = units[: min(_SHIFTS[0] * stride, len(units) - _DEGREE * stride)]
            for shift in _SHIFTS:
                units[shift * stride : shift * stride + len(run)] ^= run
            units = units[len(run) :]
        stride //= 2
    return units


@cache
def _powers() -> NDArray[np.uint32]:
    """uint32[8 * _DEGREE]: x^(32 + k) modulo P for the k-th bit from the end."""
    powers = np.empty(8 * _DEGREE, np.uint32)
    power = _POLYNOMIAL
    for place in range(len(powers) - 1, -1, -1):
        powers[place] = power
        power = power >> 1 ^ (_POLYNOMIAL if power & 1 else 0)
    return powers
