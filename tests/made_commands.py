"""`bertsmith` in processes that come from the fork server, which has imported what they need: torch alone takes
seconds to import."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.util import Finalize
from pathlib import Path
from typing import IO, Any, Self

import pytest
from tqdm import tqdm

from bertsmith.base.processes import without_main_module
from bertsmith.cli import main
from made_runs import PATIENCE, fork_server


def called(script: Any, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> Any:
    """Runs an imported script of `benchmarks` as from a command line; gives its exit status, if it has one."""
    monkeypatch.setattr(sys, "argv", [f"{script.__name__}.py", *map(str, arguments)])
    return script.main()


def bertsmith(*arguments: str) -> int:
    """The command line."""
    sys.argv = ["bertsmith", *arguments]
    return main()


class Command:
    """A process of its own that runs `bertsmith` with these arguments, with a pipe at each of stdin, stdout and stderr.

    It is used as subprocess.Popen is, with text. does: another function to call with the arguments; what it returns is
    the exit status. own_group: whether it leads a session, and so a process group. log: a file at the end of which it
    writes both outputs, in place of the pipes. environment: its own, else that of this process; variables: more of it.
    Those that torch reads when it is imported (OMP_NUM_THREADS, LRU_CACHE_CAPACITY) have no effect.
    """

    way = "forkserver"
    """Of multiprocessing; with "fork" it is a copy of this process."""

    keeps: object = None
    """What has to be there in this process while that one runs."""

    stdin: IO[str]
    stdout: IO[str]
    stderr: IO[str]

    def __init__(
        self,
        *arguments: str,
        does: Callable[..., int | None] = bertsmith,
        own_group: bool = False,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
        **variables: str,
    ) -> None:
        context: Any = fork_server() if self.way == "forkserver" else multiprocessing.get_context(self.way)
        pipes = [context.Pipe(duplex=False) for _ in range(0 if log else 3)]
        theirs = [pipe[number > 0] for number, pipe in enumerate(pipes)]
        environment = {**(os.environ if environment is None else environment), **variables}
        self._process = context.Process(
            target=run_command, args=(does, arguments, log or theirs, own_group, environment)
        )
        with without_main_module():
            self._process.start()
        # A failed test may leave it: it ends once nobody holds it, and before this process, which would wait for it.
        Finalize(self, self._process.kill, exitpriority=0)
        for end in theirs:
            end.close()
        self._pipes: list[IO[str]] = []
        if pipes:
            self.stdin, self.stdout = _opened(pipes[0][1], "w"), _opened(pipes[1][0], "r")
            self.stderr = _opened(pipes[2][0], "r")
            self._pipes = [self.stdin, self.stdout, self.stderr]
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float = PATIENCE) -> int:
        """The exit status, once it has ended. Raises subprocess.TimeoutExpired."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Ends it at once."""
        self._process.kill()

    def communicate(self, typed: str = "") -> tuple[str, str]:
        """All that it writes to stdout and stderr until it ends, where this is typed and nothing more."""
        with ThreadPoolExecutor(3) as pool:
            pool.submit(self._type, typed)
            out, err = pool.submit(self.stdout.read), pool.submit(self.stderr.read)
        self.wait()
        return out.result(), err.result()

    def _type(self, typed: str) -> None:
        with suppress(BrokenPipeError), self.stdin:
            self.stdin.write(typed)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends it, and closes the pipes."""
        self.kill()
        self.wait()
        for pipe in self._pipes:
            with suppress(BrokenPipeError):
                pipe.close()


def started_anew(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    """The same as a shell starts it, with nothing imported before."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(
        [sys.executable, "-m", "bertsmith", *arguments], text=True, env={**os.environ, **variables}, **pipes
    )


def _opened(end: Connection, mode: str) -> IO[str]:
    file = os.fdopen(os.dup(end.fileno()), mode, encoding="utf-8")
    end.close()
    return file


def run_command(
    does: Callable[..., int | None],
    arguments: tuple[str, ...],
    outputs: Path | list[Connection],
    own_group: bool,
    environment: dict[str, str],
) -> None:
    """What such a process does. outputs: a file for both, or its standard streams."""
    if own_group:
        os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    if isinstance(outputs, Path):
        with open(outputs, "ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    else:
        for number, end in enumerate(outputs):
            os.dup2(end.fileno(), number)
            end.close()
    sys.stdin = os.fdopen(0, "r", encoding="utf-8", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", closefd=False)
    tqdm.set_lock(threading.RLock())  # its own is shared by processes, and left on the system by a killed one
    sys.exit(does(*arguments))
