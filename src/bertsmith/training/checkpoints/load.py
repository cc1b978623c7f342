"""The newest whole checkpoint of a run, found and restored; damaged ones are named and set aside."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from torch import Tensor, nn

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import first_of, warn
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.training.checkpoints.folders import STATE_FILE, WEIGHTS_FILE, check_best, check_step, opened_tensors
from bertsmith.training.checkpoints.position import Best, Position, best_folder, read_position, step_folders
from bertsmith.training.checkpoints.state import MOMENTS, WEIGHTS, state_of
from bertsmith.training.parallel import fill_from_whole

_ASIDE = "damaged-"
_WITHOUT_BEST = "put back a whole copy of them; or remove the checkpoints, and the run starts from the beginning"


def newest_whole(run: Path, needs_best: bool = True) -> Path | None:
    """The newest step folder that is whole; None for a run without one. For the first rank of a run.

    Every file is compared with its checksum, those of the best weights too that a step folder refers to. Newer folders
    that are damaged are warned about and renamed, so that no later resume continues from one of them. needs_best:
    whether a folder whose best weights are damaged is damaged; where the run can be continued without them, they are
    given up with a warning. Raises BertsmithError where there are step folders and none is whole.
    """
    damaged: dict[Path, BertsmithError] = {}
    without_best = 0
    for folder in reversed(step_folders(run)):
        try:
            check_step(folder)
        except BertsmithError as error:
            damaged[folder] = error
            continue
        lost = _damaged_bests(run, folder)
        if lost and needs_best:
            damaged[folder] = next(iter(lost.values()))
            without_best += 1
            continue
        _set_aside(damaged, folder)
        for best, why in lost.items():
            _lose_best(best, why)
        return folder
    if not damaged:
        return None
    names = ", ".join(each.name for each in damaged)
    newest = next(iter(damaged.values()))
    if without_best == len(damaged):
        what = f"the best weights so far are damaged, and every checkpoint refers to them ({names}): {newest.what}"
        fix = _WITHOUT_BEST
    else:
        what = f"no checkpoint of this run is whole, so it cannot be resumed: {newest.what} (damaged: {names})"
        fix = "put back a whole copy of one of them; or remove them, and the run starts from the beginning"
    raise BertsmithError(what, newest.where, fix)


def _damaged_bests(run: Path, folder: Path) -> dict[Path, BertsmithError]:
    """The best weights that a step folder refers to and that are not whole, with what is wrong."""
    found = {}
    for best in read_position(folder).bests:
        try:
            check_best(best_folder(run, best.step))
        except BertsmithError as error:
            found[best_folder(run, best.step)] = error
    return found


def _set_aside(damaged: Mapping[Path, BertsmithError], taken: Path) -> None:
    for folder, why in damaged.items():
        aside = _aside(folder)
        warn(
            f"{folder.name} is damaged, so {taken.name} is taken: {why.what} ({why.where}); it is now called "
            f"{aside.name}, and can be removed"
        )


def _lose_best(best: Path, why: BertsmithError) -> None:
    aside = f"; it is now called {_aside(best).name}, and can be removed" if best.exists() else ""
    warn(
        f"{best.name} is damaged, so the best weights up to now are lost, and the best is chosen from what comes: "
        f"{why.what} ({why.where}){aside}"
    )


def _aside(folder: Path) -> Path:
    aside = folder.with_name(_ASIDE + folder.name)
    shutil.rmtree(aside, ignore_errors=True)
    os.replace(folder, aside)
    return aside


def load_checkpoint(folder: Path, model: nn.Module, optimizer: ClippedOptimizer) -> Position:
    """Restores a step folder. Whole tensors are read one by one, and each rank takes its part of them. Raises
    BertsmithError, naming the tensors, for a folder that does not fit the model, and for one that is damaged."""
    position = read_position(folder)
    with opened_tensors(folder / STATE_FILE) as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  not a mapping
        _check_weights(shapes, model, folder)
        # All moments: those that the checkpoint lacks belong to parameters that were never updated, and stay zero.
        optimizer.start_afresh()
        optimizer.make_moments()
        tensors = state_of(model, optimizer)
        lacking = [name for name in tensors if name not in shapes and not name.startswith(MOMENTS)]
        if lacking:
            raise BertsmithError(f"this checkpoint lacks {first_of(lacking)}", folder / STATE_FILE)
        _fill({name: each for name, each in tensors.items() if name in shapes}, file.get_tensor)
    return position


def load_best(run: Path, best: Best, model: nn.Module) -> None:
    """Gives a model the best weights. Raises BertsmithError for a damaged folder and one of another model."""
    folder = best_folder(run, best.step)
    try:
        check_best(folder)
    except BertsmithError as error:
        raise BertsmithError(f"the best weights are damaged: {error.what}", error.where, _WITHOUT_BEST) from error
    with opened_tensors(folder / WEIGHTS_FILE) as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118  not a mapping
        _check_weights({f"{WEIGHTS}{name}": shape for name, shape in shapes.items()}, model, folder)
        _fill(model.state_dict(), file.get_tensor)


def _fill(tensors: Mapping[str, Tensor], read: Callable[[str], Tensor]) -> None:
    for name, tensor in tensors.items():
        fill_from_whole(tensor, read(name))


def _check_weights(found: Mapping[str, tuple[int, ...]], model: nn.Module, folder: Path) -> None:
    """Raises BertsmithError that names the weights which are missing, unexpected or wrongly shaped."""
    wanted = {f"{WEIGHTS}{name}": tuple(each.shape) for name, each in model.state_dict().items()}
    found = {name: shape for name, shape in found.items() if name.startswith(WEIGHTS)}
    wrong = sorted(wanted.keys() ^ found.keys()) + sorted(
        name for name in wanted.keys() & found.keys() if wanted[name] != found[name]
    )
    if wrong:
        raise BertsmithError(
            f"this checkpoint is of another model: {first_of(name.removeprefix(WEIGHTS) for name in wrong)}",
            folder,
            "resume with the settings of the run, or start a new run in another folder",
        )
