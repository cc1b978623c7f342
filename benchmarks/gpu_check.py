"""The GPU's tests and measurements, in one command of at most nine minutes; without a GPU it says what they would be.

Each row is in the file as soon as it is made; one that fails is named there and passed over. It needs torch, numpy,
pytest and, for the peer, transformers; what prepares text is not needed, and no network.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from bertsmith.base import log
from bertsmith.bench.gpu.plan import CheckSizes, check_parts
from bertsmith.bench.gpu.rows import Rows, measure_parts, tables
from bertsmith.bench.machine import machine
from bertsmith.bench.process import last_line
from bertsmith.bench.step.bench import about_steps
from bertsmith.bench.table import Report

ROOT = Path(__file__).resolve().parent.parent
# Of the nine minutes, half of one is for imports before the clock runs, and for the end.
TOTAL_SECONDS, TEST_SECONDS = 510.0, 200.0
PASSED = "passed"
TESTS = ("tests/house/test_torch_names.py", "tests/gpu")


def main() -> int:
    """Runs tests, then measurements with what is left of the time; returns the exit status. The tables come last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="a file for the rows; by default one of benchmarks/results")
    parser.add_argument("--only", default="", help="only the rows whose name holds this")
    parser.add_argument("--tiny", action="store_true", help="every row at a tiny size, on a CPU too, without the tests")
    asked = parser.parse_args()
    has_gpu = torch.cuda.is_available()
    started = time.monotonic()
    command = f'make gpu-check ARGS="{shlex.join(sys.argv[1:])}"' if sys.argv[1:] else "make gpu-check"
    sizes = CheckSizes.tiny("cuda" if has_gpu else "cpu") if asked.tiny else CheckSizes()
    with tempfile.TemporaryDirectory(prefix="bertsmith-gpu-check-") as made:
        name = file_name(torch.cuda.get_device_name(0)) if has_gpu else "cpu"
        rows = Rows(asked.json or ROOT / "benchmarks" / "results" / f"{name}.json", {"command": command}, machine())
        parts, run = check_parts(sizes, Path(made), rows, asked.only)
        names = [name for part in parts for name in part.names if asked.only in name]
        if not has_gpu and not asked.tiny:
            print("gpu-check: no CUDA device was found, so there is nothing to check here. In this order it would test")
            print("\n".join(f"  {line}" for line in test_files()))
            print("and measure")
            print("\n".join(f"  {name}" for name in names))
            return 0
        if not names:
            print(f"gpu-check: no row's name holds '{asked.only}'", file=sys.stderr)
            return 2
        log.configure()
        keep_kernels()
        rows.head["tests"] = "left out" if asked.tiny else run_tests()
        rows.write()
        measure_parts(parts, rows, started + TOTAL_SECONDS, asked.only)
        rows.head["about"] = about_steps(run, "made-up pieces in pairs as long as those of English Wikipedia")
        rows.write()
    report = Report(command, rows.machine, rows.head["about"], rows.made, tables(parts, rows))
    failed = [f"  {name}: {last_line(why)}" for name, why in rows.failed.items()]
    print("\n".join([f"gpu-check: tests {rows.head['tests']}; {len(rows.made)} rows in {rows.to}", *failed]))
    print(f"\n{report.as_text()}")
    return 0 if rows.head["tests"] in (PASSED, "left out") and rows.made else 1


def test_files() -> list[str]:
    """A line for each file of tests with what it says of itself, in the order in which they run."""
    found = [path for each in TESTS for path in sorted((ROOT / each).glob("test_*.py")) or [ROOT / each]]
    docs = [ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in found]
    return [f"{path.relative_to(ROOT)}: {doc.splitlines()[0]}" for path, doc in zip(found, docs, strict=True)]


def keep_kernels() -> None:
    """Lets all processes of this call and of later ones share the kernels that compilers made, in a folder of the
    checkout. What the environment says goes first."""
    for name, folder in (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")):
        os.environ.setdefault(name, str(ROOT / ".cache" / "gpu-check" / folder))


def run_tests() -> str:
    """How the tests end in their time, such as "passed"; their output comes as it does."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS]
    # A group of their own, so that nothing that they started goes on beside the measurements.
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        try:
            return PASSED if process.wait(TEST_SECONDS) == 0 else "FAILED"
        except subprocess.TimeoutExpired:
            return f"NOT DONE after {TEST_SECONDS:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def file_name(gpu: str) -> str:
    """The GPU's name as a file may have it."""
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-")


if __name__ == "__main__":
    sys.exit(main())
