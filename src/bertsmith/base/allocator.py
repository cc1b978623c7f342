"""Memory for training on a CPU: what a step frees is kept for the next one, and pages are large where there are such.

glibc gives large blocks back at once, and the system hands out fresh pages, cleared one by one, when the next step asks
again: 0.1 million of them for a step of BERT-base (`mallopt`(3)). And a step walks through gigabytes, of which a
processor finds no place without looking it up: with pages of 2 MB instead of 4 kB it does so less often (`madvise`(2)).
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

from bertsmith.base.log import log_choice

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_NEVER = -1
# Older glibc refuses more than the second.
_MMAP_BYTES = (1 << 30, 1 << 25)

_MADV_HUGEPAGE = 14
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_HUGE_BYTES = 1 << 21


def keep_freed_memory() -> bool:
    """Lets this process keep what it frees, up to the most it ever held at one time; whether that could be asked for.

    Only glibc has such a switch. It is one for the whole process, and is said. Large pages are asked for at the first
    call, and are said if the system gives them.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    assert library is not None
    largest = next((size for size in _MMAP_BYTES if library.mallopt(_MMAP_THRESHOLD, size)), 0)
    kept = bool(library.mallopt(_TRIM_THRESHOLD, _NEVER)) and largest > 0
    if kept:
        log_choice("memory that a step frees", "kept for the next one", "fresh pages would take 5% of a step's time")
        _ask_for_large_pages(library, largest)
    return kept


_asked = False


def _ask_for_large_pages(library: ctypes.CDLL, largest: int) -> None:
    """Has the heap grow over as much room as there is memory free, asks for large pages there, and gives the room back
    to the heap. No memory is taken by that: a page becomes memory when it is first written to.

    largest: bytes; a larger block than that would not be of the heap.
    """
    global _asked
    if _asked or "[madvise]" not in _text_of(_HUGE_PAGES):  # elsewhere they come unasked, or never
        return
    _asked = True
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    size = largest // 2
    blocks = [block for block in (library.malloc(size) for _ in range(_free_bytes() // size)) if block]
    given = 0
    for block in blocks:
        first = -(-block // _HUGE_BYTES) * _HUGE_BYTES
        given += library.madvise(first, block + size - first, _MADV_HUGEPAGE) == 0
    for block in reversed(blocks):
        library.free(block)
    if given:
        log_choice("pages of memory", "of 2 MB where they can be had", "a step finds its way through gigabytes faster")


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""


def touch_memory(size: int = 1 << 32) -> None:
    """Has the heap hold `size` bytes more that were written to and are free: for a profiler, whose records lie between
    what a step frees, so that the step takes fresh pages, which it would not take by itself."""
    blocks = [bytearray(_HUGE_BYTES * 64) for _ in range(min(size, _free_bytes() // 2) // (_HUGE_BYTES * 64))]
    for block in blocks:
        block[:: 1 << 12] = bytes(len(block) >> 12)


def _free_bytes() -> int:
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
