"""Where a run stands, and the names of the folders that say so."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, TypeVar

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import read_json

_Value = TypeVar("_Value", "Best", "Position")

POSITION_FILE = "position.json"
_NUMBER = "[0-9]" * 8  # of a folder's name; a user may have put others beside it, such as best-so-far
# Earlier versions kept no more than these, and best weights where a run selects.
_ALWAYS = {"step", "stage", "stage_step", "tokens", "since_log"}
# What runs of earlier versions call parts of a position.
_OLD_NAMES = {"phase": "stage", "phase_step": "stage_step"}


@dataclass(frozen=True)
class Best:
    """The best weights of a stage so far: their score, and the step after which they were written."""

    score: float
    step: int


@dataclass(frozen=True)
class Position:
    """Where a run stands: steps of the whole run, the number of its stage (0 before the first), steps done in that
    stage, real tokens of the whole run.

    since_log: a `Meter`'s state, of the steps that no line of metrics holds yet. best: of the present stage, None where
    there are none yet. kept: of earlier stages. stale: evaluations since the one that was best in the present stage.
    unmeasured: an evaluation is due here that a stop has ended. seconds, pace: of a stage that is driven by time, how
    old the run is, and `Pace.state`.
    """

    step: int = 0
    stage: int = 0
    stage_step: int = 0
    tokens: int = 0
    since_log: list[float] = field(default_factory=list)
    best: Best | None = None
    kept: list[Best] = field(default_factory=list)
    stale: int = 0
    unmeasured: bool = False
    seconds: float = 0.0
    pace: list[float] = field(default_factory=list)

    @property
    def bests(self) -> list[Best]:
        """All best weights that are kept."""
        return [*self.kept, *([] if self.best is None else [self.best])]

    def without_bests(self, steps: Collection[int]) -> Self:
        """Without the best weights of these steps."""
        best = None if self.best is None or self.best.step in steps else self.best
        return replace(self, best=best, kept=[each for each in self.kept if each.step not in steps])

    @property
    def pending(self) -> int:
        """How many steps no line of metrics holds yet."""
        return int(self.since_log[-3]) if self.since_log else 0


def step_folder(run: Path, step: int) -> Path:
    """Where the checkpoint of a step is written."""
    return run / f"step-{step:08d}"


def best_folder(run: Path, step: int) -> Path:
    """Where the weights are written that were the best so far after a step."""
    return run / f"best-{step:08d}"


def lost_bests(run: Path, position: Position) -> list[int]:
    """The steps of the best weights that a position refers to and that are not there."""
    return [best.step for best in position.bests if not best_folder(run, best.step).is_dir()]


def step_folders(run: Path) -> list[Path]:
    """The step folders of a run, oldest first, damaged ones included."""
    return sorted(each for each in run.glob(f"step-{_NUMBER}") if each.is_dir())


def best_folders(run: Path) -> list[Path]:
    """The folders of best weights, oldest first, damaged ones included."""
    return sorted(each for each in run.glob(f"best-{_NUMBER}") if each.is_dir())


def step_of(folder: Path) -> int:
    """The step of a step folder."""
    return int(folder.name.removeprefix("step-"))


def read_position(folder: Path) -> Position:
    """The position that a step folder holds. Raises BertsmithError where it holds none."""
    path = folder / POSITION_FILE
    values = read_json(path)
    try:
        values = {_OLD_NAMES.get(name, name): value for name, value in values.items()}
        if not values.keys() >= _ALWAYS:
            raise TypeError(f"it lacks {', '.join(sorted(_ALWAYS - values.keys()))}")
        best, kept = values.pop("best", None), values.pop("kept", [])
        found = Position(**values, best=None if best is None else _best(best), kept=[_best(each) for each in kept])
        return _typed(found)
    except (AttributeError, KeyError, TypeError) as error:
        raise BertsmithError("its position is not one", path) from error


def _best(values: Mapping[str, Any]) -> Best:
    """Earlier versions named the stage as well."""
    return _typed(Best(values["score"], values["step"]))


def _typed(value: _Value) -> _Value:
    """A dataclass whose numbers are of the types that it says. TypeError where one is not."""
    numbers = {each.name: {"int": int, "float": float}.get(str(each.type)) for each in fields(value)}
    if any(kind is not None and type(getattr(value, name)) is not kind for name, kind in numbers.items()):
        raise TypeError(f"{value!r} has a number of another type")
    return value
