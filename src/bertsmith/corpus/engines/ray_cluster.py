"""The parts of a preparation on a Ray cluster whose nodes share a folder.

Ray carries tasks to nodes and small accounts back; texts and ids go through the shared folder. A part whose worker or
node dies is given to another one by us, not by Ray, so that it is logged and bounded.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import sys
from collections import Counter, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Self, TypeVar

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted, log_choice, warn
from bertsmith.base.processes import one_thread
from bertsmith.base.stopping import handled
from bertsmith.corpus.engines.local import Finished
from bertsmith.corpus.engines.nodes import Common, check_node

Task = TypeVar("Task")
Result = TypeVar("Result")

_ATTEMPTS = 4
_TASKS_AHEAD = 2
_LOOK_SECONDS = 5.0
_FIX = "it may have run out of memory: give the nodes more, or fewer cores to Ray; finished parts are kept"


class RayEngine:
    """Runs parts as Ray tasks of one core each. folder: shared by all nodes, at the same path.

    address: of a cluster ("auto", "host:port"), or "local" for one of this machine alone, started here; without one,
    that of RAY_ADDRESS or of a cluster that this machine belongs to, else "local". most: parts under way at once;
    without it, two for each core.
    """

    def __init__(self, folder: Path, address: str | None = None, most: int | None = None) -> None:
        self._folder, self._address, self._most = folder.absolute(), address, most
        self._ray = _import_ray()
        self._started = False

    def __enter__(self) -> Self:
        if not self._ray.is_initialized():
            # Ray has its own handler, which ends the process with a stack trace; the block puts that of before back.
            with handled({signal.SIGTERM: signal.default_int_handler}):
                self._connect()
            self._started = True
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        log_choice("engine", "ray", f"{counted(len(nodes), 'node')}, {counted(self._cores(), 'core')}")
        token = secrets.token_hex(8)
        self._seen = self._folder / f".seen-{token}"
        self._common = Common.here(self._seen, token)
        self._remote = self._ray.remote(num_cpus=1, max_retries=0)(_on_node)
        return self

    def __exit__(self, *error: object) -> None:
        self._seen.unlink(missing_ok=True)
        if self._started:
            self._ray.shutdown()

    def _connect(self) -> None:
        # Ray reports its usage over the network unless that is disabled.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        address = self._address or os.environ.get("RAY_ADDRESS") or "auto"
        if address != "local":
            try:
                _knock(address)
                self._ray.init(address=address, **quiet)
                return
            except (OSError, ValueError, RuntimeError, self._ray.exceptions.RayError) as error:
                if address != "auto":
                    what = f"no Ray cluster answers ({str(error).strip().splitlines()[0]})"
                    fix = "start one with `ray start --head`, and run this on one of its nodes"
                    raise BertsmithError(what, address, fix) from error
        self._ray.init(address="local", num_cpus=self._most, include_dashboard=False, **quiet)

    def _cores(self) -> int:
        return int(self._ray.cluster_resources().get("CPU", 0))

    def once(self, name: str, make: Callable[[], object]) -> None:
        """See Engine: the driver does it."""
        make()

    def run(
        self, function: Callable[[Task], Result], tasks: Sequence[Task], finished: Finished = lambda number, _: None
    ) -> list[Result]:
        """See Engine. Raises BertsmithError when the workers of a part die four times, or a node does not fit in."""
        results: dict[int, Result] = {}
        waiting, running, died = deque(range(len(tasks))), dict[Any, int](), Counter[int]()
        while waiting or running:
            while waiting and len(running) < (self._most or max(1, _TASKS_AHEAD * self._cores())):
                number = waiting.popleft()
                running[self._remote.remote(self._common, function, tasks[number])] = number
            done, _ = self._ray.wait(list(running), num_returns=1, timeout=_LOOK_SECONDS)
            if not done and not self._cores():
                warn("the Ray cluster has no core at present; waiting for a node to join")
            for reference in done:
                number = running.pop(reference)
                try:
                    results[number] = self._ray.get(reference)
                except self._ray.exceptions.RayTaskError as error:
                    raise _own(error) from error
                except self._ray.exceptions.RayError as error:
                    died[number] += 1
                    self._note_death(error, tasks[number], died[number])
                    waiting.appendleft(number)
                else:
                    finished(number, results[number])
        return [results[number] for number in range(len(tasks))]

    def _note_death(self, error: Exception, task: Any, deaths: int) -> None:
        reason = type(error).__name__
        if deaths == _ATTEMPTS:
            what = f"this part failed {deaths} times on the cluster, because its worker or node died ({reason})"
            raise BertsmithError(what, str(task), _FIX) from error
        warn(f"a worker or a node of the cluster died ({reason}); {task} is done again")


def _knock(address: str) -> None:
    """Raises OSError where nothing listens at HOST:PORT, for which Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal() and "//" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_LOOK_SECONDS).close()


def _own(error: Any) -> Exception:
    """What the part itself raised; a fault of ours with what Ray knows about where."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BertsmithError):
        return cause
    if "No module named 'bertsmith'" in str(error):
        return BertsmithError("a node of the cluster has no bertsmith", "engine", "install it on every node")
    assert isinstance(error, Exception)
    return error


def _on_node(common: Common, function: Callable[[Task], Result], task: Task) -> Result:
    """Does a part on whatever node it came to."""
    check_node(common)
    with one_thread():
        return function(task)


def _import_ray() -> ModuleType:
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        what = f"--engine ray needs the package 'ray', which is not installed for this Python {python}"
        raise BertsmithError(what, "engine", "pip install 'bertsmith[ray]'") from error
    return ray
