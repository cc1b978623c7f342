"""Random numbers as pure functions of named keys, so that any worker can reproduce any of them at any time.

A key is a 64-bit integer hashed from (seed, phase, epoch, purpose, place). Numbers come from a key in two ways:
`generator` for one draw after another, and `bits`/`uniform`/`below` for whole arrays of counters.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

UInt64s = NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_30, _27, _31, _11 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(11)


def stream_key(seed: int, *names: str | int) -> int:
    """A 64-bit key for the stream named by (seed, *names). Equal arguments give an equal key on every machine."""
    text = "\x1f".join(f"{type(name).__name__}:{name}" for name in (seed, *names))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def generator(key: int) -> np.random.Generator:
    """A numpy generator (Philox, the same on every platform) for the stream of `key`."""
    return np.random.Generator(np.random.Philox(key=key))


def mix(values: UInt64s) -> UInt64s:
    """The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): a bijection of 64-bit integers that scatters them."""
    with np.errstate(over="ignore"):
        z = values.astype(np.uint64) + _GOLDEN
        z = (z ^ (z >> _30)) * _MIX_1
        z = (z ^ (z >> _27)) * _MIX_2
        return np.asarray(z ^ (z >> _31), dtype=np.uint64)


def bits(keys: UInt64s | int, counters: UInt64s) -> UInt64s:
    """64 random bits for every (key, counter); the two broadcast against each other."""
    with np.errstate(over="ignore"):
        return mix(mix(np.asarray(keys, dtype=np.uint64)) ^ (counters.astype(np.uint64) * _GOLDEN))


def uniform(keys: UInt64s | int, counters: UInt64s) -> NDArray[np.float64]:
    """Numbers in [0, 1), 53 bits each."""
    return (bits(keys, counters) >> _11).astype(np.float64) * (1.0 / (1 << 53))


def below(limit: int, keys: UInt64s | int, counters: UInt64s) -> NDArray[np.int64]:
    """Integers in [0, limit), limit < 2**31, by Lemire's multiply-shift; its bias is under limit / 2**32."""
    high = bits(keys, counters) >> np.uint64(32)
    return ((high * np.uint64(limit)) >> np.uint64(32)).astype(np.int64)
