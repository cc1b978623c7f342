"""Promise: `make bench` makes all tables, and continues with the one at which it was broken off."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bertsmith.bench.run import NAMES

REPOSITORY = Path(__file__).parents[2]
BERTSMITH = """#!/bin/sh
echo "$@" "$ATEN_CPU_CAPABILITY" >> "$CALLS"
echo "table of $2"
case "$*" in *"$FAILS"*) exit 1;; esac
"""


def make(folder: Path, fails: str, *args: str) -> subprocess.CompletedProcess[str]:
    """`make bench` with a `bertsmith` that prints a line, and fails where its arguments hold these."""
    environment = {**os.environ, "CALLS": str(folder / "calls"), "FAILS": fails, "BERTSMITH_DATA": str(folder)}
    # As a user's own make, not as one below the `make test` that runs this.
    for name in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "ARGS", "ATEN_CPU_CAPABILITY"):
        environment.pop(name, None)
    command = ["make", "bench", f"VENV={folder}", f"BENCH_OUT={folder / 'tables'}", *args]
    return subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().splitlines()


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_a_bench_that_was_broken_off_continues_with_the_next_table(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, text in (("bertsmith", BERTSMITH), ("python", "#!/bin/sh\n")):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    (tmp_path / ".ready").touch()
    for real in ("glue/SST-2/dev.tsv", "squad/v1.1/dev-v1.1.json"):
        (tmp_path / real).parent.mkdir(parents=True)
        (tmp_path / real).touch()
    broken = make(tmp_path, "bench finetune")
    assert broken.returncode != 0
    before = calls(tmp_path)
    assert before[-1].startswith("bench finetune --markdown --json ")
    assert {call.split()[1] for call in before} <= {*NAMES}
    assert [call.endswith(" avx2") for call in before].count(True) == 1
    assert not (tmp_path / "tables" / "finetune.md").exists()

    done = make(tmp_path, "nothing")
    assert done.returncode == 0, done.stderr
    after = calls(tmp_path)[len(before) :]
    assert after[0].startswith("bench finetune "), "what was measured is not measured again"
    assert {call.split()[1] for call in [*before, *after]} == {*NAMES}
    assert [call.split(" --only ")[1].split()[0] for call in after if call.startswith("bench predict ")] == [
        "x",
        "real",
    ]
    assert done.stdout.count("table of ") == len(before) + len(after) - 1
    assert make(tmp_path, "nothing").returncode == 0
    assert len(calls(tmp_path)) == len(before) + len(after)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_the_names_of_rows_reach_gpu_check_as_they_are_given(tmp_path: Path) -> None:
    """A colon, a dollar and spaces mean something else to make."""
    python = tmp_path / "python3"
    python.write_text('#!/bin/sh\n[ "$1" = -c ] && exit 0\nprintf "%s\\n" "$PYTHONPATH" "$@"\n')
    python.chmod(0o755)
    ours = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "ARGS")
    }
    environment = {**ours, "PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHONPATH": "carried"}
    command = ["make", "gpu-check", "ARGS=--only '^large, .* at (128|512): bf16' 'attention 0$'"]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True)
    path, script, *given = done.stdout.splitlines()
    assert (path, script) == ("src:carried", "benchmarks/gpu_check.py")
    assert given == ["--only", "^large, .* at (128|512): bf16", "attention 0$"]
