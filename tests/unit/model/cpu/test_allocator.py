"""Freed memory stays with the process."""

from __future__ import annotations

import subprocess
import sys

import pytest

COUNT = """
import resource, sys
import numpy as np
from bertsmith.model.cpu.allocator import keep_freed_memory

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


TOUCHED = """
import resource, sys
from bertsmith.model.cpu.allocator import keep_freed_memory, touch_memory

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
