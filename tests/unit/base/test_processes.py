"""How much memory there is for this process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from bertsmith.base.processes import usable_memory

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no sysconf there")
MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if sys.platform != "win32" else 0


@pytest.mark.parametrize(
    ("group", "files", "found"),
    [
        ("0::/", {"memory.max": "8000000"}, 8_000_000),
        ("0::/", {"memory.max": "max"}, MACHINE),
        ("0::/", {}, MACHINE),
        ("0::/slurm/job_1/step_0", {"slurm/job_1/memory.max": "6000000", "slurm/memory.max": "max"}, 6_000_000),
        ("12:memory:/docker/abc\n0::/", {"memory/memory.limit_in_bytes": "5000000"}, 5_000_000),
        ("3:cpu:/\n2:memory:/slurm/job_1", {"memory/slurm/job_1/memory.limit_in_bytes": "4000000"}, 4_000_000),
        ("12:memory:/", {"memory/memory.limit_in_bytes": str(1 << 62)}, MACHINE),
    ],
)
def test_it_is_that_of_the_container_where_this_has_less(
    group: str, files: dict[str, str], found: int, tmp_path: Path
) -> None:
    for name, text in files.items():
        path = tmp_path / "limits" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    (tmp_path / "cgroup").write_text(f"{group}\n")
    assert usable_memory(tmp_path / "limits", tmp_path / "cgroup") == found
    assert usable_memory(tmp_path / "limits", tmp_path / "none") <= MACHINE
    assert 0 < usable_memory() <= MACHINE
