"""A child process of a bench: its environment, questions and answers as JSON lines, and the last that it printed."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from bertsmith.base.errors import BertsmithError
from bertsmith.bench.child import Answer

# No library of a peer waits for a network, and bars of progress do not fill the log.
_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
}
_OF_COMMANDS = {"MKL_CBWR": "AUTO,STRICT", "GOMP_SPINCOUNT": "10000"}
"""What the command line sets (`cli/entry.py`) and the processes that it starts inherit."""
_POLL_SECONDS = 0.5
_LAST_CHARACTERS = 2000


class OutOfTime(Exception):
    """The bench's time is over before a side was done."""


class SideFailed(BertsmithError):
    """A side cannot do this here; `what` says why, as a table shows it: "out of memory"."""


NO_TIME = "no time was left"


def ending(why: BertsmithError | OutOfTime) -> str:
    """Why there is no figure, in a line for a table: the last of what a process printed says most."""
    return NO_TIME if isinstance(why, OutOfTime) else last_line(why.what)


def nothing_measured(left_out: Sequence[str], bench: str) -> BertsmithError:
    """The error of a bench without a figure. left_out: its cases, each with the reason."""
    what = f"nothing was measured: {'; '.join(left_out)}"
    fix = "give more --minutes" if NO_TIME in what else "see the reasons, or choose other cases with --only"
    return BertsmithError(what, bench, fix)


def last_line(text: str) -> str:
    """Of a process's last words, which may be none."""
    return (text.splitlines() or ["it said nothing"])[-1]


def environment_of(ours: bool) -> dict[str, str | None]:
    """What a side's process has otherwise than this one: ours asks MKL for what the command line does, whatever started
    the bench; a peer runs as shipped, without what the command line sets. Other values of the user's stay."""
    if ours:
        return {"MKL_CBWR": os.environ.get("MKL_CBWR") or _OF_COMMANDS["MKL_CBWR"]}
    return {name: None for name, value in _OF_COMMANDS.items() if os.environ.get(name) == value}


class Child:
    """`python -m MODULE SPEC`, where the module calls `child.serve`; used as a context, it is gone at the end.

    It leads a process group of its own, which `close` kills and which ends by itself when this process dies.
    """

    def __init__(
        self,
        module: str,
        spec: Mapping[str, Any],
        folder: Path,
        environment: Mapping[str, str | None] | None = None,
        deadline: float = float("inf"),
    ) -> None:
        """spec: what JSON can hold; paths become strings. folder: for the spec and the log, and those of an earlier one
        are written over. environment: added to that of this process, which loses what is None. deadline: of
        time.monotonic()."""
        folder.mkdir(parents=True, exist_ok=True)
        self.module, self._deadline = module, deadline
        self._log, self._spec = folder / "output.log", folder / "spec.json"
        self._spec.write_text(json.dumps(spec, default=str), encoding="utf-8")
        known = {**os.environ, **_OFFLINE, **(environment or {})}
        self._environment = {name: value for name, value in known.items() if value is not None}
        self._start()

    def _start(self) -> None:
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self.module, str(self._spec)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                env=self._environment,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._rest = b""
        self._ready: Answer | None = None

    def start_again(self) -> None:
        """Starts it anew if it was ready and ended since, so that what ended it ends no later question."""
        if self._ready is not None and "failed" not in self._ready and not self.is_alive:
            self.close()
            self._start()

    @property
    def is_alive(self) -> bool:
        """Whether it can be asked more."""
        return self._process.poll() is None

    def ready(self) -> Answer:
        """Waits until it has loaded what it needs, and returns its first answer. SideFailed if it cannot run here."""
        if self._ready is None:  # a side may have nothing to say: {}
            self._ready = self._receive()
        return _checked(self._ready)

    def ask(self, do: str, **arguments: Any) -> Answer:
        """Waits until it is ready, asks, and waits for the answer.

        SideFailed if it cannot do this, OutOfTime past the deadline, BertsmithError with its last words if it ended.
        """
        self.ready()
        if time.monotonic() > self._deadline:  # an answer that came too late is not taken for that of the next question
            raise OutOfTime
        self._send(do, arguments)
        return _checked(self._receive())

    def finish(self) -> float:
        """Lets it end, and returns the CPU seconds, user and system, of it and of all processes it waited for."""
        self._send("end", {})
        _, status, usage = os.wait4(self.pid, 0)
        self._process.returncode = os.waitstatus_to_exitcode(status)
        if self._process.returncode:
            raise self._ended()
        return usage.ru_utime + usage.ru_stime

    def _send(self, do: str, arguments: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then the answer says why
            self._process.stdin.write((json.dumps({"do": do, **arguments}) + "\n").encode())

    def _receive(self) -> Answer:
        assert self._process.stdout is not None
        while b"\n" not in self._rest:
            left = self._deadline - time.monotonic()
            if select.select([self._process.stdout], [], [], max(0.0, min(left, _POLL_SECONDS)))[0]:
                received = self._process.stdout.read(1 << 16)
                if not received:
                    raise self._ended()
                self._rest += received
            elif left <= 0:
                raise OutOfTime
            elif self._process.poll() is not None:  # what it started may keep its output open
                raise self._ended()
        line, _, self._rest = self._rest.partition(b"\n")
        answer: Answer = json.loads(line)
        return answer

    def _ended(self) -> Exception:
        """Why it ended before it answered."""
        status = self._process.wait()
        if status == -signal.SIGKILL:  # nobody else kills it
            return SideFailed("killed by the system, as it does when memory runs out")
        last = self._log.read_text(encoding="utf-8", errors="replace").strip()[-_LAST_CHARACTERS:]
        return BertsmithError(f"a process of the bench ended with status {status}:\n{last}", self.module)

    def close(self) -> None:
        """Kills the process and whatever it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # its number may be another process's by now
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _checked(answer: Answer) -> Answer:
    if "failed" in answer:
        raise SideFailed(answer["failed"])
    return answer
