"""Step folders that are written whole or not at all, and the best weights that they refer to.

step-00000500/              the model's tensors and their moments, under names no model loader takes
best-00000400/              the weights that scored best up to some step folder, where a run selects
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bertsmith.base.errors import BertsmithError
from bertsmith.base.files import read_json, whole_folder
from bertsmith.base.log import warn
from bertsmith.optim.clipped import ClippedOptimizer

_STATE = "training-state.safetensors"
_POSITION = "position.json"
_LOSS_SCALE = "optimizer.loss_scale."
_WEIGHTS = "weights.safetensors"
_STEP_FOLDER = re.compile(r"step-(\d{8})$")
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


def save_checkpoint(run: Path, position: Position, model: nn.Module, optimizer: ClippedOptimizer, keep: int) -> Path:
    """Writes a step folder, and removes all but it and the newest `keep` - 1 before it.

    Raises BertsmithError when the disk is full; the step folders written before are then intact.
    """
    folder = run / f"step-{position.step:08d}"
    with whole_folder(folder) as aside:
        _write_tensors(_flatten(model, optimizer), aside / _STATE)
        (aside / _POSITION).write_text(json.dumps(asdict(position)), encoding="utf-8")
    up_to_now = [each for each in step_folders(run) if each.name <= folder.name]
    for old in up_to_now[:-keep] if keep > 0 else []:
        shutil.rmtree(old, ignore_errors=True)
    if position.best is not None:
        _remove_unused_best(run)
    return folder


def save_best(run: Path, step: int, model: nn.Module) -> None:
    """Writes the weights of a model as the best so far. Those that older step folders refer to stay as long as these.

    Raises BertsmithError when the disk is full.
    """
    with whole_folder(_best_folder(run, step)) as aside:
        _write_tensors(dict(model.state_dict()), aside / _WEIGHTS)


def load_best(run: Path, best: Best, model: nn.Module) -> None:
    """Gives a model the best weights. Raises BertsmithError for a damaged folder and one of another model."""
    folder = _best_folder(run, best.step)
    weights = _read_tensors(folder / _WEIGHTS, "start the run again in another folder: its best weights are lost")
    _check_weights(weights, model, folder)
    model.load_state_dict(weights)


def _best_folder(run: Path, step: int) -> Path:
    return run / f"best-{step:08d}"


def _remove_unused_best(run: Path) -> None:
    """Removes best weights that no step folder refers to; all stay where a step folder cannot be read."""
    try:
        positions = [_read_position(folder / _POSITION) for folder in step_folders(run)]
    except BertsmithError as error:
        warn(f"no best weights were removed, because a step folder is damaged: {error.what} ({error.where})")
        return
    used = {_best_folder(run, each.best.step) for each in positions if each.best is not None}
    for folder in run.glob("best-*"):
        if folder not in used:
            shutil.rmtree(folder, ignore_errors=True)


def _write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, path)
    except SafetensorError as error:
        raise _as_disk_error(error, path.parent) from error


def _read_tensors(path: Path, fix: str) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
    except (SafetensorError, OSError) as error:
        raise BertsmithError(f"this checkpoint is damaged ({error})", path, fix) from error


def _as_disk_error(error: SafetensorError, folder: Path) -> Exception:
    """safetensors wraps the system's error in its own; a full disk must still be told apart from a bug."""
    if re.search(r"os error (28|122)|No space left|quota", str(error)):
        fix = "free some space, then resume the run; what was saved before is intact"
        return BertsmithError("could not write: no space left on the disk", folder, fix)
    return error


def step_folders(run: Path) -> list[Path]:
    """The whole step folders of a run, oldest first."""
    found = [each for each in run.glob("step-*") if _STEP_FOLDER.search(each.name) and (each / _POSITION).exists()]
    return sorted(found)


def load_checkpoint(
    run: Path, model: nn.Module, optimizer: ClippedOptimizer, folder: Path | None = None
) -> Position | None:
    """Restores a step folder, the newest one unless it is named; None where the run has none yet.

    Raises BertsmithError, naming the tensor, where the folder does not fit the model, and for a damaged one.
    """
    if folder is None:
        folders = step_folders(run)
        if not folders:
            return None
        folder = folders[-1]
    position = _read_position(folder / _POSITION)
    tensors = _read_tensors(folder / _STATE, f"remove {folder} to resume from the step before it")
    _restore(tensors, model, optimizer, folder)
    return position


def _read_position(path: Path) -> Position:
    fix = f"remove {path.parent} to resume from the step before it"
    values = read_json(path, fix)
    if isinstance(values, dict):
        values = {_OLD_NAMES.get(name, name): value for name, value in values.items()}
        best = values.pop("best", None)
        kinds = {each.name: type(getattr(Position(), each.name)) for each in fields(Position) if each.name != "best"}
        best_kinds = None if best is None else {name: type(value) for name, value in dict(best).items()}
        if {name: type(value) for name, value in values.items()} == kinds and best_kinds in (None, _BEST_KINDS):
            return Position(**values, best=None if best is None else Best(**best))
    raise BertsmithError("this checkpoint is damaged: its position is not one", path, fix)


def _flatten(model: nn.Module, optimizer: ClippedOptimizer) -> dict[str, Tensor]:
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    state = optimizer.state_dict()
    for index, moments in state["state"].items():
        tensors |= {f"optimizer.state.{index}.{name}": tensor for name, tensor in moments.items()}
    for index, group in enumerate(state["param_groups"]):
        tensors[f"optimizer.group.{index}.step"] = group["step"]
    return tensors | {f"{_LOSS_SCALE}{name}": tensor for name, tensor in state.get("loss_scale", {}).items()}


def _restore(tensors: Mapping[str, Tensor], model: nn.Module, optimizer: ClippedOptimizer, folder: Path) -> None:
    weights = {name.removeprefix("model."): each for name, each in tensors.items() if name.startswith("model.")}
    _check_weights(weights, model, folder)
    model.load_state_dict(weights)
    state: dict[str, Any] = optimizer.state_dict()
    moments: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer.state."):
            _, _, index, key = name.split(".")
            moments.setdefault(int(index), {})[key] = tensor
    for number, group in enumerate(state["param_groups"]):
        group["step"] = tensors[f"optimizer.group.{number}.step"]
    scale = {name.removeprefix(_LOSS_SCALE): each for name, each in tensors.items() if name.startswith(_LOSS_SCALE)}
    optimizer.load_state_dict({"state": moments, "param_groups": state["param_groups"], "loss_scale": scale})


def _check_weights(weights: Mapping[str, Tensor], model: nn.Module, folder: Path) -> None:
    """Raises BertsmithError that names the tensors which are missing, unexpected or wrongly shaped."""
    wanted = model.state_dict()
    wrong = sorted(wanted.keys() ^ weights.keys()) + sorted(
        name for name in wanted.keys() & weights.keys() if wanted[name].shape != weights[name].shape
    )
    if wrong:
        raise BertsmithError(
            f"this checkpoint is of another model: {', '.join(wrong[:8])}",
            folder,
            "resume with the settings of the run, or start a new run in another folder",
        )
