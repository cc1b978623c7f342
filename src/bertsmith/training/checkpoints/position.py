"""Where a run stands, and the names of the folders that say so."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import read_json

POSITION_FILE = "position.json"
_STEP_FOLDER = re.compile(r"step-(\d{8})")
_BEST_KINDS = {"score": float, "step": int}
# What runs of earlier versions call parts of a position.
_OLD_NAMES = {"phase": "stage", "phase_step": "stage_step"}


@dataclass(frozen=True)
class Best:
    """The best weights of a run so far: their score, and the step after which they were written."""

    score: float
    step: int


@dataclass(frozen=True)
class Position:
    """Where a run stands: steps of the whole run, the number of its stage (0 before the first), steps done in that
    stage, real tokens of the whole run.

    since_log: a `Meter`'s state, of the steps that no line of metrics holds yet. best: None where none are kept.
    """

    step: int = 0
    stage: int = 0
    stage_step: int = 0
    tokens: int = 0
    since_log: list[float] = field(default_factory=list)
    best: Best | None = None


def step_folder(run: Path, step: int) -> Path:
    """Where the checkpoint of a step is written."""
    return run / f"step-{step:08d}"


def best_folder(run: Path, step: int) -> Path:
    """Where the weights are written that were the best so far after a step."""
    return run / f"best-{step:08d}"


def step_folders(run: Path) -> list[Path]:
    """The step folders of a run, oldest first, damaged ones included."""
    return sorted(each for each in run.glob("step-*") if _STEP_FOLDER.fullmatch(each.name) and each.is_dir())


def step_of(folder: Path) -> int:
    """The step of a step folder."""
    return int(folder.name.removeprefix("step-"))


def read_position(folder: Path) -> Position:
    """The position that a step folder holds. Raises BertsmithError where it holds none."""
    path = folder / POSITION_FILE
    values = read_json(path)
    if isinstance(values, dict):
        values = {_OLD_NAMES.get(name, name): value for name, value in values.items()}
        best = values.pop("best", None)
        kinds = {each.name: type(getattr(Position(), each.name)) for each in fields(Position) if each.name != "best"}
        best_kinds = {name: type(value) for name, value in best.items()} if isinstance(best, dict) else best
        if {name: type(value) for name, value in values.items()} == kinds and best_kinds in (None, _BEST_KINDS):
            return Position(**values, best=None if best is None else Best(**best))
    raise BertsmithError("its position is not one", path)
