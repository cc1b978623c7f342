"""Scores of the training rows by models that did not train on them: those that `--folds` trains, one a fold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.tasks.finetuning.trials import FOLD, Trial
from bertsmith.tasks.report.parts import OUT_OF_FOLD
from bertsmith.tasks.sequences import slots_of
from bertsmith.tasks.task import Examples, Floats

_FOLDER = "folds"


def keeper(run: Path) -> Callable[[str, Floats], None]:
    """Keeps the scores of a fold's rows in the run folder until the run ends: `TaskObjective.keep`."""

    def keep(part: str, scores: Floats) -> None:
        if part.startswith(FOLD):
            (run / _FOLDER).mkdir(exist_ok=True)
            files.write_whole(run / _FOLDER / f"{part}.npy", lambda file: np.save(file, scores, allow_pickle=False))

    return keep


def out_of_fold(run: Path, stages: Sequence[Trial]) -> tuple[Floats, Examples] | None:
    """The scores of all training rows, each by the model of the fold that it was left out of; None without folds.

    Raises BertsmithError where what was kept is missing or of other rows.
    """
    folds = [each for each in stages if each.kind == FOLD]
    if not folds:
        return None
    task, every = folds[0].work.task, folds[0].work.parts["train"]
    tokens = np.concatenate(([0], np.cumsum(every.sequences.lengths)))
    found: Floats | None = None
    for each in folds:
        assert each.fold is not None
        path = run / _FOLDER / f"{each.name}.npy"
        fix = "put the file back, or run the training again in another folder"
        try:
            scores = np.load(path, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise BertsmithError("the scores of this fold are missing or damaged", path, fix) from error
        places = slots_of(every.sequences.row_offsets, np.asarray(each.fold, dtype=np.int64))
        places = slots_of(tokens, places) if task.per_token else places
        if len(places) != len(scores):
            raise BertsmithError("these scores are of other rows", path, fix)
        if found is None:
            count = int(tokens[-1]) if task.per_token else len(every.sequences.ids)
            found = np.zeros((count, scores.shape[1]), dtype=np.float32)
        found[places] = scores
    assert found is not None
    return found, replace(every, part=OUT_OF_FOLD)


def drop_scores(run: Path) -> None:
    """Removes what was kept, when the report is written."""
    if (run / _FOLDER).is_dir():
        files.remove_folder(run / _FOLDER)
