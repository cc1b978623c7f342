"""A run's records as a run of Weights & Biases; what fails there is warned about once, and ends nothing."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from bertsmith.base.files import write_text
from bertsmith.base.log import say, warn
from bertsmith.training.records.tensorboard import numbers_of

T = TypeVar("T")
# Beside wandb's own files, so that a resumed run continues the same run there.
_ID_FILE = Path("wandb") / "run-id.txt"
_STEP = "optimizer_step"


class WeightsAndBiases:
    """A `Sink`. Where its files and requests go is wandb's own affair, and its variables', such as WANDB_MODE=offline.

    A number `loss` of a record of kind "train" is `train/loss`, over `optimizer_step`.
    """

    def __init__(self, project: str, folder: Path, settings: Mapping[str, Any]) -> None:
        """folder: of the run, whose name it gets. settings: what it was asked for."""
        self._failed = False
        self._run: Any = self._tried("to start", lambda: self._started(project, folder, settings))
        if self._run is not None:
            # wandb warns whoever asks an offline run for its address.
            offline = getattr(self._run, "offline", False)
            where = None if offline else self._tried("to start", lambda: self._run.url)
            if not self._failed:
                say(f"Weights & Biases: project {project}, run {folder.name} ({where or 'offline'})")

    @staticmethod
    def _started(project: str, folder: Path, settings: Mapping[str, Any]) -> Any:
        import wandb

        path = folder / _ID_FILE
        if not path.is_file():
            write_text(path, secrets.token_hex(8))
        known = path.read_text(encoding="utf-8")
        run = wandb.init(
            project=project, name=folder.name, id=known, resume="allow", dir=str(folder), config=dict(settings)
        )
        # W&B's own step must rise, and a resumed run takes some steps again.
        run.define_metric("*", step_metric=_STEP)
        return run

    def write(self, record: Mapping[str, Any]) -> None:
        """Takes a record of `metrics.jsonl`: its numbers."""
        numbers = numbers_of(record)
        if self._run is not None and numbers:
            self._tried("to take a record", lambda: self._run.log({**numbers, _STEP: record["step"]}))

    def close(self, failed: bool = False) -> None:
        """Waits, as wandb does, until it has sent what it was given."""
        if self._run is not None:
            self._tried("to finish", lambda: self._run.finish(exit_code=int(failed)))

    def _tried(self, what: str, work: Callable[[], T]) -> T | None:
        """What the work gives; None where it fails, or something has failed before."""
        if self._failed:
            return None
        try:
            return work()
        except (Exception, SystemExit) as error:
            self._failed = True
            warn(
                f"Weights & Biases failed {what} ({type(error).__name__}: {error}), and is given nothing more; "
                "training continues, and metrics.jsonl has every record"
            )
            return None
