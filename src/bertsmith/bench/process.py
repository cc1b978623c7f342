"""A case in a process of its own: the processor time and the memory of all its processes together."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import say

Work = Callable[[], dict[str, Any]]
"""What a side does once it has loaded what it needs; its result is what JSON can hold."""

_EVERY_SECONDS = 0.03


@dataclass(frozen=True)
class CaseSpec:
    """What a case does. side: a key of `cases.SIDES`. source: what it reads. out: an empty folder that it may fill.
    tokenizer: a folder with vocab.txt and tokenizer.json. options: what the side takes beside these."""

    side: str
    source: Path
    out: Path
    tokenizer: Path
    options: dict[str, Any]


@dataclass(frozen=True)
class Measured:
    """What a case took. cpu_seconds: user and system, all processes, from the end of imports on. startup_seconds:
    the same before. wall_seconds: of the clock, both together. peak_bytes: the most that all processes held at one
    time (their proportional shares, so that what they share counts once). disk_bytes: what lies in `out` at the end.
    result: what the side returned. missing: a package that is not installed, and then all else is 0."""

    cpu_seconds: float
    startup_seconds: float
    wall_seconds: float
    peak_bytes: int
    disk_bytes: int
    result: dict[str, Any]
    missing: str = ""


def measure(spec: CaseSpec) -> Measured:
    """Runs the case and waits for it. Raises BertsmithError with its last words where it failed."""
    spec.out.mkdir(parents=True)
    told, said = spec.out.with_suffix(".json"), spec.out.with_suffix(".log")
    told.write_text(json.dumps(asdict(spec), default=str), encoding="utf-8")
    began = time.monotonic()
    with open(said, "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "bertsmith.bench.cases", str(told)],
            stdout=log,
            stderr=log,
            env=os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", **_offline(spec.out)},
            start_new_session=True,
        )
    with _ended_with_us(process), _Memory(process.pid) as memory:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        last = said.read_text(encoding="utf-8", errors="replace").strip()[-2000:]
        raise BertsmithError(f"the case '{spec.side}' ended with status {process.returncode}:\n{last}", spec.source)
    result = json.loads(told.read_text(encoding="utf-8"))
    cpu = usage.ru_utime + usage.ru_stime
    missing = result.pop("missing", "")
    if missing:
        say(f"  {spec.side}: {missing} is not installed")
        return Measured(0, 0, 0, 0, 0, {}, missing)
    startup = result.pop("startup_seconds")
    wall = time.monotonic() - began
    return Measured(cpu - startup, startup, wall, memory.peak_bytes, disk_bytes(spec.out), result)


def disk_bytes(folder: Path) -> int:
    """The bytes of all files under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _offline(folder: Path) -> dict[str, str]:
    """Keeps the peers' libraries off the network, and their caches in the folder that is counted."""
    return {
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "HF_DATASETS_CACHE": str(folder / "cache"),
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }


@contextlib.contextmanager
def _ended_with_us(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Whatever happens here, the case and its workers do not outlive it."""
    try:
        yield
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class _Memory:
    """Watches what a process and all under it hold; 0 where the system does not tell."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._pid, self._done = pid, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> _Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.is_set():
            self.peak_bytes = max(self.peak_bytes, sum(map(_share_bytes, _family(self._pid))))
            self._done.wait(_EVERY_SECONDS)


def _family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parent = int(entry.read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.parent.name))
    family = [pid]
    for member in family:
        family += children.get(member, [])
    return family


def _share_bytes(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return 1024 * int(line.split()[1])
    return 0
