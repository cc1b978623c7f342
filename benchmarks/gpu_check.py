"""The GPU's tests and measurements, in one command of at most nine minutes; without a GPU it says so and ends well."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parent.parent
TOTAL_SECONDS = 530
TEST_SECONDS = 240


def main() -> int:
    """Runs tests, then measurements with what is left of the time; returns the exit status."""
    if not torch.cuda.is_available():
        print("gpu-check: no CUDA device was found, so there is nothing to check here")
        return 0
    started = time.monotonic()
    tests = call([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"], TEST_SECONDS)
    left = TOTAL_SECONDS - (time.monotonic() - started)
    bench = [sys.executable, "benchmarks/pretrain_step.py", "--device", "cuda", "--budget-seconds", f"{left - 60:.0f}"]
    measured = call(bench, left)
    print(
        f"gpu-check: tests {'passed' if tests == 0 else 'FAILED'}; measurements {'done' if measured == 0 else 'FAILED'}"
    )
    return 1 if tests or measured else 0


def call(command: list[str], seconds: float) -> int:
    """Runs a command in the repository, its output as it comes; a command that takes too long is stopped and fails."""
    try:
        return subprocess.run(command, cwd=ROOT, timeout=seconds, check=False).returncode
    except subprocess.TimeoutExpired:
        print(f"gpu-check: stopped after {seconds:.0f} s: {' '.join(command)}")
        return 1


if __name__ == "__main__":
    sys.exit(main())
