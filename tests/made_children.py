"""The processes of a bench as copies of one that has imported what they need: torch alone takes seconds."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import IO, Any

import pytest

from bertsmith.bench import process
from made_commands import Command

FORKING = SimpleNamespace(PIPE=subprocess.PIPE, Popen=lambda command, **how: BenchProcess(command, **how))
"""What stands for `subprocess` in `bench.process`."""


class BenchProcess(Command):
    """`python -m MODULE SPEC` in a session of its own, used as subprocess.Popen is, with unbuffered pipes."""

    stdin: Any
    stdout: Any

    def __init__(self, command: Sequence[str], stderr: IO[bytes], env: Mapping[str, str], **_: Any) -> None:
        super().__init__(*command[2:], stderr.name, does=_module, own_group=True, environment=env)
        self.stdin, self.stdout = (each.detach().detach() for each in (self.stdin, self.stdout))
        with suppress(ProcessLookupError):  # it has ended
            while os.getpgid(self.pid) != self.pid:
                time.sleep(0.001)


def forks_from_here() -> None:
    """For good, the processes of a bench in this one are copies of it."""
    BenchProcess.way = "fork"
    pytest.MonkeyPatch().setattr(process, "subprocess", FORKING)


def _module(module: str, spec: str, log: str) -> None:
    with open(log, "ab") as file:
        os.dup2(file.fileno(), 2)
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv = [module, spec]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
