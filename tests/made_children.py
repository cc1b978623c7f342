"""The processes of a bench as copies of one that has imported what they need: torch alone takes seconds."""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import IO, Any

import pytest

from bertsmith.base.processes import without_main_module
from bertsmith.bench import process

FORKING = SimpleNamespace(PIPE=subprocess.PIPE, Popen=lambda command, **how: Forked(command, **how))
"""What stands for `subprocess` in `bench.process`."""


class Forked:
    """`python -m MODULE SPEC` in a session of its own, used as subprocess.Popen is, with unbuffered pipes. way: of
    multiprocessing."""

    way = "forkserver"

    def __init__(self, command: Sequence[str], stderr: IO[bytes], env: Mapping[str, str], **_: Any) -> None:
        context: Any = multiprocessing.get_context(self.way)
        given, stdin = context.Pipe(duplex=False)
        stdout, printed = context.Pipe(duplex=False)
        module, spec = command[2:]
        self._process = context.Process(target=_run, args=(module, spec, given, printed, stderr.name, dict(env)))
        with without_main_module():
            self._process.start()
        given.close()
        printed.close()
        self.stdin, self.stdout = (_opened(end, mode) for end, mode in ((stdin, "wb"), (stdout, "rb")))
        assert self._process.pid is not None
        self.pid = self._process.pid
        with suppress(ProcessLookupError):  # it has ended
            while os.getpgid(self.pid) != self.pid:
                time.sleep(0.001)

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        return self._process.exitcode

    def wait(self) -> int:
        """The exit status, once it has ended."""
        self._process.join()
        status = self._process.exitcode
        assert status is not None
        return status

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()


def forks_from_here() -> None:
    """For good, the processes of a bench in this one are copies of it."""
    Forked.way = "fork"
    pytest.MonkeyPatch().setattr(process, "subprocess", FORKING)


def _opened(end: Connection, mode: str) -> IO[Any]:
    file = os.fdopen(os.dup(end.fileno()), mode, 0)
    end.close()
    return file


def _run(module: str, spec: str, stdin: Connection, stdout: Connection, log: str, environment: dict[str, str]) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    with open(log, "ab") as file:
        for number, other in enumerate((stdin, stdout, file)):
            os.dup2(other.fileno(), number)
    stdin.close()
    stdout.close()
    sys.path[:0] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = [module, spec]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
