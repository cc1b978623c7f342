"""How many cores and how much memory there are, and what processes are started with."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bertsmith.base.errors import BertsmithError

_MAIN_MODULE = threading.Lock()
# A worker is one core: the libraries under it start no threads of their own.
_ONE_THREAD = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def default_workers() -> int:
    """The cores that this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    else:
        return os.cpu_count() or 1


def usable_memory(limits: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Bytes that this process may use: the machine's memory, or the limit of its container or job where that is lower.

    limits: where Linux mounts control groups. own: the file that names the group of this process.
    """
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    kinds = {"": "memory.max", "memory": "memory.limit_in_bytes"}  # of control groups of version 2, and of version 1
    groups = dict.fromkeys(kinds, Path("/"))
    with suppress(OSError, ValueError):
        lines = (line.split(":", 2) for line in own.read_text(encoding="utf-8").splitlines())
        groups |= {kind: Path(group) for _, kind, group in lines if kind in kinds}
    for kind, group in groups.items():
        for each in (group, *group.parents):
            with suppress(OSError, ValueError):  # there is none, or it is "max"
                found.append(int((limits / kind / str(each).lstrip("/") / kinds[kind]).read_text(encoding="utf-8")))
    return min(found)


def bound_product_caches() -> None:
    """Has PyTorch and oneDNN remember 64 shapes of products each, not 1,024. To call before torch is imported, where
    batches have ever new shapes: each that is remembered takes some 0.5 MB, and to make it anew took no time that could
    be measured. A value of the user's stays."""
    for name in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
        os.environ.setdefault(name, "64")


@contextmanager
def one_thread() -> Iterator[None]:
    """Sets what keeps libraries to one thread, for this process and for workers that it starts."""
    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(_ONE_THREAD)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def without_main_module() -> Iterator[None]:
    """Keeps workers from importing the caller's script, which would run again where it has no `__main__` guard."""
    with _MAIN_MODULE:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


@contextmanager
def start_errors(what: str, where: str, fix: str) -> Iterator[None]:
    """Turns what keeps this process from starting another one into a BertsmithError. what: is to be started."""
    try:
        yield
    except (OSError, AssertionError) as error:  # AssertionError: a daemonic process may not have children
        raise BertsmithError(f"{what} could not be started ({error})", where, fix) from error


def start_worker() -> None:
    """Ctrl-C is the parent's to handle; and a worker whose parent was killed would wait for tasks for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def leave_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=leave_with_parent, daemon=True).start()
