"""Freed memory stays with the process, on large pages where they are to be asked for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COUNT = """
import resource, sys
import numpy as np
from bertsmith.base.allocator import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()
faults = []
for _ in range(6):
    block = np.ones(48 << 20, np.uint8)
    del block
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
print(faults[-1] - faults[0])
"""


def fresh_pages(how: str) -> int:
    """Pages that the system handed out for five blocks of 48 MB, after a first one."""
    done = subprocess.run([sys.executable, "-c", COUNT, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc gives large blocks back at once")
def test_a_block_that_was_freed_is_given_out_again() -> None:
    # Pages may be of 4 kB or of 2 MB.
    assert fresh_pages("kept") <= 5
    assert fresh_pages("given back") >= 5 * 24 - 5


PAGES = """
import ctypes, re
from pathlib import Path
from bertsmith.base.allocator import keep_freed_memory

def resident():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

def flags_at(address):
    here = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            here = int(found[1], 16) <= address < int(found[2], 16)
        elif here and line.startswith("VmFlags:"):
            return line.split()[1:]

before = resident()
keep_freed_memory()
taken = resident() - before
block = bytearray(200 << 20)  # numpy asks for large pages by itself
middle = ctypes.addressof(ctypes.c_char.from_buffer(block, len(block) // 2))
print(taken, "hg" in flags_at(middle))
"""
SWITCH = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(not SWITCH.exists() or "[madvise]" not in SWITCH.read_text(), reason="pages need not be asked for")
def test_large_pages_are_asked_for_where_tensors_will_lie_and_take_no_memory_yet() -> None:
    done = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, text=True, check=True)
    taken_kb, asked = done.stdout.split()
    assert int(taken_kb) < 8192
    assert asked == "True"


TOUCHED = """
import resource, sys
from bertsmith.base.allocator import keep_freed_memory, touch_memory

assert keep_freed_memory()
if sys.argv[1] == "touched":
    touch_memory(1 << 28)
before = resource.getrusage(resource.RUSAGE_SELF)
block = bytearray(b"x") * (100 << 20)
after = resource.getrusage(resource.RUSAGE_SELF)
print(after.ru_minflt - before.ru_minflt)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc keeps what is freed")
def test_memory_that_was_touched_costs_no_fresh_pages() -> None:
    taken = {}
    for how in ("touched", "fresh"):
        done = subprocess.run([sys.executable, "-c", TOUCHED, how], capture_output=True, text=True, check=True)
        taken[how] = int(done.stdout)
    # Pages of 2 MB, or of 4 kB.
    assert taken["fresh"] >= 40
    assert taken["touched"] <= 20
