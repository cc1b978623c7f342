"""A server of a serving bench, run as `python -m bertsmith.bench.serve.server SPEC`: it starts the command, is ready
once the server answers, and is killed with it, whatever becomes of the bench."""

from __future__ import annotations

import contextlib
import subprocess
import time
from pathlib import Path

from bertsmith.bench.child import Answer, CannotHere, Ready, serve
from bertsmith.bench.process import last_line
from bertsmith.bench.serve.client import Address, ask_once

_START_SECONDS = 300.0
_LOOK_SECONDS = 0.2
_LAST_CHARACTERS = 400


def start(spec: Answer) -> Ready:
    """spec: the command, where it answers ("port", "path"), the JSON of a request ("body"), and the file of all that is
    printed ("log"). Says the server's process."""
    process = subprocess.Popen(spec["command"], stdin=subprocess.DEVNULL)
    address, body = Address(spec["port"], spec["path"]), spec["body"].encode()
    end = time.monotonic() + _START_SECONDS
    while not _answers(address, body):
        if process.poll() is not None:
            raise CannotHere(f"it ended with status {process.returncode}: {_last_words(Path(spec['log']))}")
        if time.monotonic() > end:
            raise CannotHere(f"it did not answer within {_START_SECONDS:g} s: {_last_words(Path(spec['log']))}")
        time.sleep(_LOOK_SECONDS)
    return Ready(pid=process.pid)


def _answers(address: Address, body: bytes) -> bool:
    with contextlib.suppress(OSError):
        return ask_once(address, body, 60)[0] == 200
    return False


def _last_words(log: Path) -> str:
    return last_line(log.read_text(encoding="utf-8", errors="replace").strip())[-_LAST_CHARACTERS:]


if __name__ == "__main__":
    serve(start)
