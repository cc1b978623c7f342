"""A run's records as NVIDIA's DLLogger writes them (its JSONStreamBackend), for scripts that read those of its BERT.

A line is `DLLL` and a JSON object: timestamp, datetime, elapsedtime (texts, as there), type, and step with data, or
metric with metadata. The keys of data are those of NVIDIA's run_pretraining.py and run_squad.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import as_json, make_folder, read_errors, write_text
from bertsmith.training.records.appended import AppendedFile

_BEGIN = "DLLL "
_UNITS = {
    "e2e_train_time": "s",
    "raw_train_time": "s",
    "training_sequences_per_second": "sequences/s",
    "final_loss": None,
}
# A line for the settings of a run, and the step of what is of the whole run, as in NVIDIA's scripts.
PARAMETER, WHOLE_RUN = "PARAMETER", ()


def check_run(path: Path, run: Path) -> None:
    """Raises BertsmithError for a file that a resumed run must not continue: of another run, or not of DLLogger."""
    with read_errors(path), path.open("rb") as file:
        is_ours = _BEGIN.encode().startswith(file.read(len(_BEGIN)))
    lines = [each for _, each in _lines(path)]
    said = [each["data"] for each in lines if each.get("step") == PARAMETER and isinstance(each.get("data"), dict)]
    recorded = said[-1].get("run") if said else None
    if not is_ours or (lines and not isinstance(recorded, str)):
        what = "this file is not one that a run of Bertsmith has written for --dllogger"
        raise BertsmithError(what, path, "name another file after --dllogger")
    if recorded is not None and not _is_at(run, recorded):
        what = f"this file has the records of another run, {recorded}"
        raise BertsmithError(what, path, "name another file after --dllogger, or remove this one")


def _is_at(run: Path, recorded: str) -> bool:
    """Whether a run may be the one that was recorded at a path. One that was moved is no longer there, and keeps its
    name and files; earlier versions recorded the path as it was given, from a folder that is not known."""
    there, here = Path(recorded), Path(os.path.realpath(run))
    if there.is_absolute() and there.exists():
        return os.path.realpath(there) == str(here)
    return there.name in ("", here.name) and (here / "run.json").is_file()


class DlloggerFile:
    """A `Sink`. A disk that refuses a line stops no training: see `AppendedFile`."""

    def __init__(
        self,
        path: Path,
        last_step: int | None,
        earlier: Sequence[Mapping[str, Any]] = (),
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        """last_step: lines that the file has of later steps, and of the whole run, are dropped, for these will be told
        again; None drops nothing. earlier: the run's records before; they enter its totals. parameters: of this
        session, a line of their own.

        Raises BertsmithError where the disk refuses the file.
        """
        lines = _lines(path)
        self._start = datetime.now() - timedelta(seconds=max((_elapsed(each) for _, each in lines), default=0.0))
        make_folder(path.parent)
        if path.exists():  # without a last line that was cut short
            kept = (line for line, each in lines if last_step is None or not _is_told_again(each, last_step))
            write_text(path, "".join(f"{line}\n" for line in kept))
        self._file = AppendedFile(path)
        self._loss: float | None = None
        self._seconds = self._sequences = 0.0
        for record in earlier:
            self._add(record)
        if parameters is not None:
            self.log(PARAMETER, parameters)
            for metric, unit in _UNITS.items():
                self._line("METADATA", {"metric": metric, "metadata": {"unit": unit}})

    def write(self, record: Mapping[str, Any]) -> None:
        """Takes a record of `metrics.jsonl`."""
        self._add(record)
        if record["kind"] == "train":
            stage = record.get("epoch", record.get("phase", 1))
            losses = {"average_loss": record.get("loss"), "step_loss": record.get("step_loss")}
            data = {**losses, "learning_rate": record["learning_rate"]}
            self.log([stage, record["step"]], {name: value for name, value in data.items() if value is not None})
        elif record["kind"] == "end":
            self.log(WHOLE_RUN, self._totals())

    def log(self, step: Sequence[int] | str, data: Mapping[str, Any]) -> None:
        """A line of its own."""
        self._line("LOG", {"step": step, "data": data})

    def close(self, failed: bool = False) -> None:
        """Raises BertsmithError where the disk refuses the last lines."""
        self._file.close()

    def _add(self, record: Mapping[str, Any]) -> None:
        if record["kind"] == "train":
            self._loss = record.get("loss")  # none of steps that all overflowed fp16
            if "sequences" in record:  # earlier versions did not count them
                self._seconds += record["steps"] * record["seconds_per_step"]
                self._sequences += record["sequences"]

    def _totals(self) -> dict[str, float | None]:
        return {
            "e2e_train_time": (datetime.now() - self._start).total_seconds(),
            "training_sequences_per_second": self._sequences / self._seconds if self._seconds else None,
            "final_loss": self._loss,
            "raw_train_time": self._seconds,
        }

    def _line(self, kind: str, values: Mapping[str, Any]) -> None:
        now = datetime.now()
        times = {"timestamp": str(now.timestamp()), "elapsedtime": str((now - self._start).total_seconds())}
        self._file.write(f"{_BEGIN}{as_json({**times, 'datetime': str(now), 'type': kind, **values})}\n".encode())


def _lines(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The lines of a file, each with what it says, {} for one that is not DLLogger's; a last one cut short is left
    out."""
    if not path.is_file():
        return []
    with read_errors(path):
        *lines, _ = path.read_text(encoding="utf-8", errors="replace").split("\n")
    return [(line, _read(line)) for line in lines]


def _read(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line.removeprefix(_BEGIN))
    except json.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _elapsed(line: Mapping[str, Any]) -> float:
    """Seconds of the run's sessions up to a line."""
    try:
        return float(line.get("elapsedtime", 0.0))
    except (TypeError, ValueError):
        return 0.0


def _is_told_again(line: Mapping[str, Any], step: int) -> bool:
    """Whether a line is of a later step, or of the whole run."""
    found = line.get("step")
    is_later = isinstance(found, list) and len(found) > 1 and isinstance(found[-1], int) and found[-1] > step
    return is_later or found == [*WHOLE_RUN]
