"""A case in a process of its own: the processor time and the memory of all its processes together."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from bertsmith.base.log import say
from bertsmith.bench.child import Answer, Ready, serve
from bertsmith.bench.process import Child, SideFailed, environment_of

Work = Callable[[], dict[str, Any]]
"""What a side does once it has loaded what it needs; its result is what JSON can hold."""
_EVERY_SECONDS = 0.03


@dataclass(frozen=True)
class CaseSpec:
    """What a case does. module: the one that runs it, whose `SIDES` has the key `side`. source: what it reads. out: a
    new folder that it may fill. tokenizer: a folder with vocab.txt and tokenizer.json. options: what the side takes
    beside these."""

    module: str
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
    result: what the side returned. failed: why there is nothing of all this."""

    cpu_seconds: float = 0.0
    startup_seconds: float = 0.0
    wall_seconds: float = 0.0
    peak_bytes: int = 0
    disk_bytes: int = 0
    result: dict[str, Any] = field(default_factory=dict)
    failed: str = ""


def measure(spec: CaseSpec, ours: bool = True) -> Measured:
    """Runs the case and waits for it. ours: as of `environment_of`.

    Raises SideFailed if it cannot run here, and BertsmithError if it ended.
    """
    spec.out.mkdir(parents=True)
    # The peers' caches lie in the folder that is counted.
    one_thread = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment = {**one_thread, "HF_DATASETS_CACHE": f"{spec.out}/cache", **environment_of(ours)}
    began = time.monotonic()
    folder = spec.out.with_name(f"{spec.out.name}-process")
    with Child(spec.module, asdict(spec), folder, environment) as child, _Memory(child.pid) as memory:
        startup = float(child.ready()["startup_seconds"])
        result = child.ask("work")
        cpu = child.finish()
    wall = time.monotonic() - began
    return Measured(cpu - startup, startup, wall, memory.peak_bytes, disk_bytes(spec.out), result)


def measure_peer(spec: CaseSpec) -> Measured:
    """As `measure`, but what cannot run here is a row that says so."""
    try:
        return measure(spec, ours=False)
    except SideFailed as why:
        say(f"  {spec.side}: {why.what}")
        return Measured(failed=why.what)


def serve_cases(sides: Mapping[str, Callable[[CaseSpec], Work]]) -> None:
    """Runs the case of a spec; called by the module that a spec names."""

    def start(spec: Answer) -> _Case:
        paths = {name: Path(spec[name]) for name in ("source", "out", "tokenizer")}
        return _Case(sides[spec["side"]](CaseSpec(**spec | paths)))

    serve(start)


class _Case(Ready):
    def __init__(self, work: Work) -> None:
        super().__init__(startup_seconds=_cpu_seconds())
        self.work = work


def _cpu_seconds() -> float:
    """User and system time of this process and of those it waited for."""
    import resource  # not on Windows, where `run_bench` says what to do

    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def disk_bytes(folder: Path) -> int:
    """The bytes of all files under a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


class _Memory:
    """Watches what a process and all under it hold; 0 on systems that do not tell."""

    def __init__(self, pid: int) -> None:
        self.peak_bytes = 0
        self._pid, self._done = pid, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.is_set():
            self.peak_bytes = max(self.peak_bytes, sum(map(_share_bytes, _family(self._pid))))
            self._done.wait(_EVERY_SECONDS)


def running_cpu_seconds(pid: int) -> float:
    """User and system time of a process and of all under it that have not ended; 0 on systems that do not tell."""
    seconds = 0.0
    for member in _family(pid):
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
            seconds += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return seconds


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
