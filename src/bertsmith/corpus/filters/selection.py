"""Which cleaned documents go on: copies, documents that hold evaluation text and near-duplicates do not, in this order.

kept.npy    bool[N], of the documents of a cleaned part
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertsmith.base.tally import EXAMPLES, Tally, excerpt
from bertsmith.corpus.engines.parts import Part, makes_part, part_folder
from bertsmith.corpus.filters.duplicates import dropped_rows, kept_documents
from bertsmith.corpus.stages.clean import CleanedPart

COPY = "copy of an earlier document"
NEAR_COPY = "near-duplicate of an earlier document"


@dataclass(frozen=True)
class ChooseTask(Part):
    """One cleaned part. copies, excluded, near: folders of what the searches drop. parts: where cleaned parts are."""

    part: int
    parts: Path
    copies: tuple[Path, ...]
    excluded: tuple[Path, ...]
    near: tuple[Path, ...]

    def __str__(self) -> str:
        return f"choosing documents of part {self.part}"


@makes_part
def choose_documents(task: ChooseTask, folder: Path) -> dict[str, Any]:
    """Writes kept.npy; returns a tally of copies and near-duplicates with what they are copies of."""
    cleaned = CleanedPart.open(part_folder(task.parts, task.part))
    dropped = Tally()
    for reason, folders in ((COPY, task.copies), (NEAR_COPY, task.near)):
        _note(dropped_rows(folders, task.part), cleaned, task, reason, dropped)
    np.save(folder / "kept.npy", kept_documents(cleaned, (*task.copies, *task.excluded, *task.near), task.part))
    return {"dropped": dropped.to_json()}


def _note(rows: NDArray[np.int64], cleaned: CleanedPart, task: ChooseTask, reason: str, dropped: Tally) -> None:
    for row in rows[:EXAMPLES].tolist():
        ((_, document),) = cleaned.documents([row[1]])
        ((_, first),) = CleanedPart.open(part_folder(task.parts, row[2])).documents([row[3]])
        agreement = f", {row[4] / 10:.0f}% alike" if len(row) > 4 else ""
        dropped.note(reason, example=f"{excerpt(document.id, document.text)} (as {first.id}{agreement})")
    if len(rows):
        dropped.note(reason, max(len(rows) - EXAMPLES, 0), int(cleaned.lengths[rows[:, 1], 2].sum()))
