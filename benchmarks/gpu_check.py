"""The GPU's tests and measurements, in one command of at most nine minutes; without a GPU it says so and ends well.

It needs torch, numpy, pytest and, for the peer, transformers; what prepares text is not needed, and no network.
"""

from __future__ import annotations

import argparse
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
from bertsmith.base.errors import EXIT_USER_INPUT, BertsmithError
from bertsmith.base.files import write_json
from bertsmith.bench.options import BenchOptions
from bertsmith.bench.step.bench import bench_pretrain_step

ROOT = Path(__file__).resolve().parent.parent
# Of the nine minutes, half of one is for imports before the clock runs, and for the end.
TOTAL_SECONDS, TEST_SECONDS = 510.0, 200.0
PASSED = "passed"


def main() -> int:
    """Runs tests, then measurements with what is left of the time; returns the exit status. The tables come last."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="a file for the rows; by default one of benchmarks/results")
    parser.add_argument("--only", default="", help="only the cases whose name holds this")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu-check: no CUDA device was found, so there is nothing to check here")
        return 0
    started = time.monotonic()
    log.configure()
    tests = run_tests()
    to = asked.json or ROOT / "benchmarks" / "results" / f"{file_name(torch.cuda.get_device_name(0))}.json"
    wanted = BenchOptions(device="cuda", only=asked.only, minutes=(started + TOTAL_SECONDS - time.monotonic()) / 60)
    command = f'make gpu-check ARGS="{shlex.join(sys.argv[1:])}"' if sys.argv[1:] else "make gpu-check"
    with tempfile.TemporaryDirectory(prefix="bertsmith-gpu-check-") as made:
        try:
            report = bench_pretrain_step(wanted, Path(made), command)
        except BertsmithError as error:
            print(f"gpu-check: tests {tests}; {error}", file=sys.stderr)
            return EXIT_USER_INPUT
    write_json(to, {**report.as_json(), "tests": tests})
    print(f"gpu-check: tests {tests}; {len(report.rows)} rows in {to}\n\n{report.as_text()}")
    return 0 if tests == PASSED else 1


def run_tests() -> str:
    """How the tests that need a GPU end in their time, such as "passed"; their output comes as it does."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"]
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
