"""`events.jsonl`: what happened to a run, beside its figures. A record a line, with `kind` and `step`:

environment     what the run was started on, at its start and at each resume (`environment`)
warning, error  a `message` as it was logged; the error is one that ended the run

A line is written when it happens and stays when the run is resumed from an earlier step; what happens again in the same
way stands there once. Ranks beside the first write what they alone warn of into `events.rank-1.jsonl` and so on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import as_json
from bertsmith.base.log import counted, warn, warnings_taken
from bertsmith.base.ranks import rank
from bertsmith.base.stopping import StoppedAfterSaving
from bertsmith.training.records.names import ENVIRONMENT, ERROR, EVENTS_FILE, WARNING


class Events:
    """Keeps every warning of a `with` block: in memory until the run has a folder, and there from `open` on.

    A disk that refuses a line stops no training: it is tried again with the next one, and warned of at the end.
    """

    def __init__(self) -> None:
        self._ends = ExitStack()
        self._lock = threading.RLock()  # a signal may warn while a warning is written
        self._waiting: list[tuple[str, dict[str, Any]]] = []
        self._path: Path | None = None
        self._step: Callable[[], int] = int
        self._known: set[str] | None = None
        self._refused = ""
        self._is_ours: Callable[[], bool] = lambda: True

    def open(
        self,
        folder: Path,
        environment: Mapping[str, Any] | None,
        step: Callable[[], int],
        is_ours: Callable[[], bool] = lambda: True,
    ) -> None:
        """Writes into the folder from here on, first what waits.

        environment: of the start, None where the folder has it. step: gives the present one. is_ours: whether the
        folder is still this run's; lines wait while it is not.
        """
        number = rank()
        with self._lock:
            self._path, self._known = folder / (EVENTS_FILE if number == 0 else f"events.rank-{number}.jsonl"), None
            self._step, self._is_ours = step, is_ours
            if number == 0 and environment is not None:
                self._waiting.insert(0, (ENVIRONMENT, dict(environment)))
            self._put()

    def hold_step(self) -> None:
        """Takes the present step for that of what is still to come, so that nothing of the training is kept for it."""
        step = self._step()
        self._step = lambda: step

    def _add(self, kind: str, message: str) -> None:
        with self._lock:
            self._waiting.append((kind, {"message": message}))
            self._put()

    def _put(self) -> None:
        """Appends what waits; what the disk refuses stays, and all where the folder is another run's."""
        if self._path is None:
            return
        if not self._is_ours():
            self._known, self._refused = None, "its folder is not this run's now"
            return
        step = self._step()
        made = dict.fromkeys(
            as_json({"kind": kind, "step": step, **values}, ensure_ascii=False) for kind, values in self._waiting
        )
        try:
            if self._known is None:
                self._known = _whole_lines(self._path)
            # The last error is looked for at the end of the file, so it stands there each time.
            new = [line for line in made if line not in self._known or _is_error(line)]
            if new:
                with open(self._path, "ab") as file:
                    file.write("".join(f"{line}\n" for line in new).encode(errors="replace"))
        except OSError as error:
            self._known, self._refused = None, error.strerror or str(error)  # a line may have been cut short
            return
        self._known.update(new)
        self._waiting.clear()

    def __enter__(self) -> Self:
        self._ends.enter_context(warnings_taken(lambda message: self._add(WARNING, message)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.close()
        if self._path is None or not self._path.parent.is_dir():  # of a run whose folder was a temporary one
            return
        if isinstance(error, BertsmithError):
            self._add(ERROR, f"{error.what} ({error.where})" if error.where else error.what)
        elif isinstance(error, Exception) and not isinstance(error, StoppedAfterSaving):
            self._add(ERROR, f"{type(error).__name__}: {error}")
        self._put()  # what waited for its folder
        if self._waiting:
            warn(f"{counted(len(self._waiting), 'line')} could not be written to {self._path}: {self._refused}")


def _is_error(line: str) -> bool:
    return line.startswith(f'{{"kind": "{ERROR}"')


def _whole_lines(path: Path) -> set[str]:
    """The lines of the file; one that was cut short by a crash is removed."""
    data = path.read_bytes() if path.exists() else b""
    whole, _, cut = data.rpartition(b"\n")
    if cut:
        os.truncate(path, len(data) - len(cut))
    return set(whole.decode(errors="replace").split("\n"))
