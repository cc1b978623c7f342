"""The GPU's tests and measurements, in one command of at most nine minutes; without a GPU it says so and ends well.

It needs torch, numpy, pytest and, for the peer, transformers; what prepares text is not needed, and no network.
"""

from __future__ import annotations

import argparse
import re
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
TOTAL_SECONDS, TEST_SECONDS = 530, 200


def main() -> int:
    """Runs tests, then measurements with what is left of the time; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="a file for the rows; by default one of benchmarks/results")
    parser.add_argument("--only", default="", help="only the cases whose name holds this")
    asked = parser.parse_args()
    if not torch.cuda.is_available():
        print("gpu-check: no CUDA device was found, so there is nothing to check here")
        return 0
    started = time.monotonic()
    log.configure()
    passed = run_tests()
    minutes = (TOTAL_SECONDS - (time.monotonic() - started)) / 60
    to = asked.json or ROOT / "benchmarks" / "results" / f"{file_name(torch.cuda.get_device_name(0))}.json"
    with tempfile.TemporaryDirectory(prefix="bertsmith-gpu-check-") as made:
        wanted = BenchOptions(device="cuda", only=asked.only, minutes=minutes)
        try:
            report = bench_pretrain_step(wanted, Path(made), "make gpu-check")
        except BertsmithError as error:
            print(error, file=sys.stderr)
            return EXIT_USER_INPUT
    write_json(to, report.as_json())
    print(report.as_text())
    print(f"gpu-check: tests {'passed' if passed else 'FAILED'}; {len(report.rows)} rows in {to}")
    return 0 if passed else 1


def run_tests() -> bool:
    """Whether the tests that need a card pass in their time; their output comes as it does."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"]
    try:
        return subprocess.run(command, cwd=ROOT, timeout=TEST_SECONDS, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"gpu-check: stopped after {TEST_SECONDS} s: {' '.join(command)}")
        return False


def file_name(card: str) -> str:
    """The card's name as a file may have it."""
    return re.sub(r"[^a-z0-9]+", "-", card.lower()).strip("-")


if __name__ == "__main__":
    sys.exit(main())
