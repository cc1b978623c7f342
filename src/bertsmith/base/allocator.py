"""Memory that a training step frees, kept for the next step instead of given back to the system.

glibc gives large blocks back at once, and the system hands out fresh pages, cleared one by one, when the next step asks
again: 0.1 million of them for a step of BERT-base, 5% to 9% of its time on a CPU (`mallopt`(3)).
"""

from __future__ import annotations

import ctypes
import sys

from bertsmith.base.log import choose

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = (1 << 31) - 1
# Older glibc refuses more than the second.
_MMAP_BYTES = (1 << 30, 1 << 25)


def keep_freed_memory() -> bool:
    """Lets this process keep what it frees, up to the most it ever held at one time; whether that could be asked for.

    Only glibc has such a switch. It is one for the whole process, and is said.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    assert library is not None
    kept = any(library.mallopt(_MMAP_THRESHOLD, size) for size in _MMAP_BYTES)
    kept = bool(library.mallopt(_TRIM_THRESHOLD, _LARGEST)) and kept
    if kept:
        choose("memory that a step frees", "kept for the next one", "fresh pages would take 5% of a step's time")
    return kept
