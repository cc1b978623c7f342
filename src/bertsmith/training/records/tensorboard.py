"""TensorBoard's event file, written in step with `metrics.jsonl`.

TensorBoard's own writer hands events to a thread, whose errors, a full disk say, nobody can catch where they happen.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from bertsmith.base.files import make_folder
from bertsmith.base.log import say
from bertsmith.training.records.appended import AppendedFile
from bertsmith.training.records.names import STAGES

_NAME = re.compile(r"events\.out\.tfevents\.(\d{19})\.")


def numbers_of(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a record of `metrics.jsonl`, but for those of its place, named as TensorBoard and Weights & Biases
    show them: KIND/NAME."""
    return {
        f"{record['kind']}/{name}": float(value)
        for name, value in record.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and name not in ("step", *STAGES)
    }


class Board:
    """An event file in a folder of its own."""

    def __init__(self, folder: Path, first_step: int, check: Callable[[], None]) -> None:
        """first_step: what earlier files of the folder tell of this step and later ones no longer counts. check: as of
        `AppendedFile`.

        Raises OSError or BertsmithError where the disk refuses a file.
        """
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        make_folder(folder)
        # TensorBoard reads them by name, and the clock may stand before that of an earlier one.
        earlier = [int(found[1]) for each in folder.iterdir() if (found := _NAME.match(each.name))]
        path = folder / f"events.out.tfevents.{max([time.time_ns(), *(each + 1 for each in earlier)])}.{os.getpid()}"
        self._file = AppendedFile(path, check)
        self._writer = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        self._write(step=first_step, session_log=SessionLog(status=SessionLog.START))

    @classmethod
    def open(cls, folder: Path, first_step: int, check: Callable[[], None]) -> Self | None:
        """None, said in a line, where TensorBoard is not installed."""
        try:
            return cls(folder, first_step, check)
        except ImportError:
            say("TensorBoard is not installed, so its files are not written (pip install 'bertsmith[tensorboard]')")
            return None

    def write(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds a point to the curve of each name."""
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        self._write(step=step, summary=self._summary(value=values))

    def _write(self, **values: Any) -> None:
        self._writer.write(self._event(wall_time=time.time(), **values).SerializeToString())

    def close(self) -> None:
        """Raises BertsmithError where the disk refuses the last events."""
        self._file.close()
