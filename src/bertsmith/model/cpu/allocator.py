"""Memory on a CPU: what a step of training frees is kept for the next one; what prediction frees is given back.

glibc gives large blocks back at once, and the system hands out fresh pages, cleared one by one, when the next step
needs them again: 0.1 million of them for a step of BERT-base (`mallopt`(3)).
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys

from bertsmith.base.log import log_choice

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = -1
# Older glibc refuses more than the second.
_MMAP_BYTES = (1 << 30, 1 << 25)
_BLOCK_BYTES, _PAGE_BYTES = 1 << 27, 1 << 12


def keep_freed_memory() -> bool:
    """Lets this process keep what it frees, up to the most it ever held at one time; whether that could be set.

    Only glibc has such a switch. It is one for the whole process, and is logged.
    """
    library = _glibc()
    if library is None:
        return False
    has_raised = any(library.mallopt(_MMAP_THRESHOLD, size) for size in _MMAP_BYTES)
    kept = bool(library.mallopt(_TRIM_THRESHOLD, _NEVER)) and has_raised
    if kept:
        log_choice("memory that a step frees", "kept for the next one", "fresh pages would take 5% of a step's time")
    return kept


def return_freed_memory() -> None:
    """Gives memory that was freed back to the system, where the C library is glibc, which keeps what is between blocks
    in use: predicting 300,000 rows took up to 572 MB, and 377 MB where this was done after each thousand."""
    library = _glibc()
    if library is not None:
        library.malloc_trim(0)


@functools.cache
def _glibc() -> ctypes.CDLL | None:
    """The C library of this process, if it is that one."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "gnu_get_libc_version") else None


def touch_memory(size: int = 1 << 32) -> None:
    """Makes the heap hold `size` bytes more that were written to and are free: for a profiler, which writes its
    records in between what a step frees, so that the step takes fresh pages, which it would not take by itself."""
    free_bytes = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    blocks = [bytearray(_BLOCK_BYTES) for _ in range(min(size, free_bytes // 2) // _BLOCK_BYTES)]
    for block in blocks:
        block[::_PAGE_BYTES] = bytes(_BLOCK_BYTES // _PAGE_BYTES)
