"""Scores of the training rows by models that did not train on them: those that `--folds` trains, one a fold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import warn
from bertsmith.tasks.finetuning.trials import FOLD, Trial
from bertsmith.tasks.report.parts import OUT_OF_FOLD
from bertsmith.tasks.sequences import Ints, slots_of
from bertsmith.tasks.task import Examples, Floats

_FOLDER = "folds"


class FoldScores:
    """Keeps the scores of a fold's rows in the run folder until the run ends. What the disk refuses stays in memory
    until it is on the disk, which the next checkpoint waits for."""

    def __init__(self, run: Path, hold: Callable[[], None]) -> None:
        """hold: called before anything is written; raises BertsmithError where the run folder is not this run's."""
        self._folder, self._hold = run / _FOLDER, hold
        self._waiting: dict[str, Floats] = {}
        self._lock = threading.Lock()  # checkpoints are written in a thread

    def keep(self, part: str, scores: Floats) -> None:
        """`TaskObjective.keep`."""
        if not part.startswith(FOLD):
            return
        with self._lock:
            self._waiting[part] = scores
        try:
            self.sync()
        except BertsmithError as error:
            kept = f"the scores of {part} are kept in memory, and the next checkpoint waits"
            warn(f"{error.what} ({error.where}); {kept}")

    def sync(self) -> None:
        """Puts on the disk what is not there. Raises BertsmithError where it refuses."""
        with self._lock, files.disk_errors(self._folder):
            for part, scores in list(self._waiting.items()):
                self._hold()
                files.make_folder(self._folder)
                write = partial(np.save, arr=scores, allow_pickle=False)
                files.write_whole(self._folder / f"{part}.npy", write)
                del self._waiting[part]


def out_of_fold(run: Path, stages: Sequence[Trial]) -> tuple[Floats, Examples] | None:
    """The scores of all training rows, each by the model of the fold that it was left out of; None without folds.

    Raises BertsmithError where what was kept is missing or of other rows.
    """
    folds = [each for each in stages if each.kind == FOLD]
    if not folds:
        return None
    task, every = folds[0].work.task, folds[0].work.parts["train"]
    tokens = np.concatenate(([0], np.cumsum(every.sequences.lengths)))
    placed, found = list[Ints](), list[Floats]()
    for each in folds:
        assert each.fold is not None
        path = run / _FOLDER / f"{each.name}.npy"
        fix = "put the file back and use --resume; or --resume --no-report, which writes the model without a report"
        try:
            scores = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise BertsmithError("the scores of this fold are missing or damaged", path, fix) from error
        places = slots_of(every.sequences.row_offsets, np.asarray(each.fold, dtype=np.int64))
        places = slots_of(tokens, places) if task.per_token else places
        if len(places) != len(scores):
            raise BertsmithError("these scores are of other rows", path, fix)
        placed.append(places)
        found.append(scores)
    return np.concatenate(found)[np.argsort(np.concatenate(placed))], replace(every, part=OUT_OF_FOLD)


def drop_scores(run: Path) -> None:
    """Removes what was kept, when the report is written."""
    if (run / _FOLDER).is_dir():
        files.remove_folder(run / _FOLDER)
