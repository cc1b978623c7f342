"""Processes that hold a folder's lock."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HOLD = """
import sys
from pathlib import Path
from bertsmith.base.locks import locked
with locked(Path(sys.argv[1]), shared=sys.argv[2] == "shared", doing="training in this folder"):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(folder: Path, shared: bool = False) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the folder until its standard input is closed."""
    command = [sys.executable, "-c", _HOLD, str(folder), "shared" if shared else "alone"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "held\n"
            yield process
        finally:
            process.kill()
