"""The run folder, and step folders that are written whole or not at all.

recipe.yaml                 the resolved recipe
run.json                    the corpus and the start that the run belongs to, and the device and precision it began with
metrics.jsonl, tensorboard/
step-00000500/              the model's tensors and their moments, under names no model loader takes
model/                      the finished model, as transformers reads it
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
from bertsmith.base.files import disk_errors, put_back, read_json, whole_folder, write_json
from bertsmith.optim.clipped import ClippedOptimizer

_STATE = "training-state.safetensors"
_POSITION = "position.json"
_LOSS_SCALE = "optimizer.loss_scale."
_BEGUN_ON = "begun_on"
_STEP_FOLDER = re.compile(r"step-(\d{8})$")


@dataclass(frozen=True)
class Position:
    """Where a run stands: steps of the whole run, the phase (1 or 2), steps done in it, real tokens of the whole run.

    since_log: a `Meter`'s state, of the steps that no line of metrics tells yet.
    """

    step: int = 0
    phase: int = 1
    phase_step: int = 0
    tokens: int = 0
    since_log: list[float] = field(default_factory=list)


def save_checkpoint(run: Path, position: Position, model: nn.Module, optimizer: ClippedOptimizer, keep: int) -> Path:
    """Writes a step folder, and removes all but it and the newest `keep` - 1 before it.

    Raises BertsmithError when the disk is full; the step folders written before are then intact.
    """
    folder = run / f"step-{position.step:08d}"
    tensors = _flatten(model, optimizer)
    with whole_folder(folder) as aside:
        try:
            save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, aside / _STATE)
        except SafetensorError as error:
            raise _as_disk_error(error, folder) from error
        (aside / _POSITION).write_text(json.dumps(asdict(position)), encoding="utf-8")
    up_to_now = [each for each in step_folders(run) if each.name <= folder.name]
    for old in up_to_now[:-keep] if keep > 0 else []:
        shutil.rmtree(old, ignore_errors=True)
    return folder


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


def load_checkpoint(run: Path, model: nn.Module, optimizer: ClippedOptimizer) -> Position | None:
    """Restores the newest step folder; None where the run has none yet.

    Raises BertsmithError, naming the tensor, where the folder does not fit the model, and for a damaged one.
    """
    folders = step_folders(run)
    if not folders:
        return None
    folder = folders[-1]
    position = _read_position(folder / _POSITION)
    try:
        with safe_open(folder / _STATE, framework="pt", device="cpu") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
    except (SafetensorError, OSError) as error:
        fix = f"remove {folder} to resume from the step before it"
        raise BertsmithError(f"this checkpoint is damaged ({error})", folder / _STATE, fix) from error
    _restore(tensors, model, optimizer, folder)
    return position


def _read_position(path: Path) -> Position:
    fix = f"remove {path.parent} to resume from the step before it"
    values = read_json(path, fix)
    kinds = {each.name: type(getattr(Position(), each.name)) for each in fields(Position)}
    if not isinstance(values, dict) or {name: type(value) for name, value in values.items()} != kinds:
        raise BertsmithError("this checkpoint is damaged: its position is not one", path, fix)
    return Position(**values)


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
    wanted = model.state_dict()
    wrong = sorted(wanted.keys() ^ weights.keys()) + sorted(
        name for name in wanted.keys() & weights.keys() if wanted[name].shape != weights[name].shape
    )
    if wrong:
        raise BertsmithError(
            f"this checkpoint is of another model: {', '.join(wrong[:8])}",
            folder,
            "resume with the recipe of the run, or start a new run in another folder",
        )
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


def claim(run: Path, identity: dict[str, Any], begun_on: dict[str, str]) -> None:
    """Makes a run folder: `run.json` says what it belongs to, and what it was begun on.

    What a killed run left half written is removed, and what it was about to replace is put back.
    """
    with disk_errors(run):
        run.mkdir(parents=True, exist_ok=True)
        put_back(run)
    for leftover in run.glob(".*.part"):
        if leftover.is_dir():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)
    write_json(run / "run.json", {**identity, _BEGUN_ON: begun_on})


def check_same_run(run: Path, identity: dict[str, Any]) -> dict[str, str]:
    """Compares with what a run folder belongs to, if to anything.

    Returns what the run was begun on, as `claim` was told; {} for a new run. Raises BertsmithError that lists what
    differs, and for checkpoints, metrics or a model of which no `run.json` says whose they are.
    """
    path = run / "run.json"
    if not path.exists():
        known_files = [each for each in (run / "metrics.jsonl", run / "model") if each.exists()]
        strays = [each.name for each in (*step_folders(run), *known_files)]
        if strays:
            what = f"this folder holds {', '.join(strays[:4])}, and no run.json says of which run"
            raise BertsmithError(what, run, "choose another --out, or move them away")
        return {}
    fix = "remove the run folder and start again"
    known = read_json(path, fix)
    if not isinstance(known, dict) or not isinstance(known.get(_BEGUN_ON, {}), dict):
        raise BertsmithError("this file does not say what a run belongs to", path, fix)
    begun_on: dict[str, str] = known.pop(_BEGUN_ON, {})
    differing = [name for name in sorted({*known, *identity}) if known.get(name) != identity.get(name)]
    if differing:
        details = "; ".join(f"{name} was {known.get(name)!r}, is {identity.get(name)!r}" for name in differing)
        raise BertsmithError(
            f"this run was started with something else: {details}", path, "use the same, or another --out for a new run"
        )
    return begun_on
