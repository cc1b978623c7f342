"""The inside of a bench's child process: it loads a side by its spec, then answers, a JSON line for a JSON line.

A process for each side, because libraries' switches, compilers' caches and peak memory belong to a whole process.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from bertsmith.base.errors import ran_out_of_memory

Answer = dict[str, Any]


class CannotHere(Exception):
    """A side cannot run here; the message says why, as a table shows it."""


class Worker(Protocol):
    """A side that has loaded what it needs. Every other public method answers a question: {"do": "turn", "steps": 3} is
    answered by `turn(steps=3)`."""

    def ready(self) -> Answer:
        """What it says first."""


class Ready:
    """A `Worker` that says these facts first. It answers no question by itself; subclasses do."""

    def __init__(self, **facts: Any) -> None:
        self._facts = facts

    def ready(self) -> Answer:
        return self._facts


def serve(start: Callable[[Answer], Worker]) -> None:
    """Starts a side with the spec that the command line names, says that it is ready, then answers.

    Ends at the question "end", and kills its process group if the bench ends without that. What cannot run here and
    what runs out of memory is answered by {"failed": why}; any other error ends the process. Whatever else is printed
    goes to standard error.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    questions: queue.SimpleQueue[Answer] = queue.SimpleQueue()
    threading.Thread(target=_read_questions, args=(questions,), daemon=True).start()

    def say(answer: Answer) -> None:
        print(json.dumps(answer), file=answers, flush=True)

    spec = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        worker = start(spec)
        say(worker.ready())
    except (CannotHere, ModuleNotFoundError, MemoryError, RuntimeError) as error:
        say(_failed(error))
        return
    while (do := (question := questions.get()).pop("do")) != "end":
        try:
            say(getattr(worker, do)(**question))
        except (CannotHere, ModuleNotFoundError, MemoryError, RuntimeError) as error:
            say(_failed(error))


def _failed(error: Exception) -> Answer:
    """The answer for an error that a table can show; raises any other one again."""
    if isinstance(error, CannotHere):
        return {"failed": str(error)}
    if isinstance(error, ModuleNotFoundError):
        missing = (error.name or "a package").partition(".")[0]
        if missing != "bertsmith":
            return {"failed": f"{missing} is not installed"}
    if ran_out_of_memory(error):
        return {"failed": "out of memory"}
    raise error


def _read_questions(questions: queue.SimpleQueue[Answer]) -> None:
    """Passes questions on; kills this process group when the bench is gone, so that no worker outlives it.

    Reads without a buffer: its lock, held by this thread, would abort the interpreter's end.
    """
    rest = b""
    while received := os.read(0, 1 << 16):
        *lines, rest = (rest + received).split(b"\n")
        for line in lines:
            questions.put(json.loads(line))
    os.killpg(0, signal.SIGKILL)
