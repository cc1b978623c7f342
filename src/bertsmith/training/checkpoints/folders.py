"""Step folders and best weights on disk: written whole or not at all with checksums, checked, and removed again."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from bertsmith.base import files
from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted, say, size, warn
from bertsmith.training.checkpoints.position import (
    POSITION_FILE,
    Position,
    best_folder,
    best_folders,
    read_position,
    step_folder,
    step_folders,
    step_of,
)

STATE_FILE, WEIGHTS_FILE = "training-state.safetensors", "weights.safetensors"
_CHECKSUMS_FILE = "checksums.json"
# In the header of tensors: their folder has a checksums.json. Those of earlier versions have none.
_MARK = {"checksums": _CHECKSUMS_FILE}


def write_step(run: Path, position: Position, tensors: Mapping[str, Tensor]) -> None:
    """Writes a step folder. Raises OSError or BertsmithError where the disk refuses; what was there stays."""
    with files.whole_folder(step_folder(run, position.step)) as aside:
        _write_tensors(tensors, aside / STATE_FILE)
        (aside / POSITION_FILE).write_text(json.dumps(asdict(position)), encoding="utf-8")
        _write_checksums(aside)


def write_best(run: Path, step: int, weights: Mapping[str, Tensor]) -> None:
    """Writes the weights that are the best so far. Raises as `write_step`."""
    with files.whole_folder(best_folder(run, step)) as aside:
        _write_tensors(weights, aside / WEIGHTS_FILE)
        _write_checksums(aside)


def _write_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    try:
        save_file(dict(tensors), path, metadata=_MARK)
    except SafetensorError as error:  # which hides the system's error: a full disk is not a bug
        found = re.search(r"os error (\d+)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error


def _write_checksums(folder: Path) -> None:
    sums = {each.name: files.sha256(each) for each in sorted(folder.iterdir())}
    (folder / _CHECKSUMS_FILE).write_text(json.dumps(sums, indent=2) + "\n", encoding="utf-8")


def check_step(folder: Path) -> None:
    """Raises BertsmithError that says what of a step folder is damaged.

    Everything is read once. Of folders without checksums, as earlier versions wrote them, the headers are.
    """
    _check_files(folder, STATE_FILE, (STATE_FILE, POSITION_FILE))
    if read_position(folder).step != step_of(folder):  # a copy by another name would be the newest for ever
        raise BertsmithError("this checkpoint is of another step than its folder is named by", folder)


def check_best(folder: Path) -> None:
    """As `check_step`, of best weights."""
    _check_files(folder, WEIGHTS_FILE, (WEIGHTS_FILE,))


def _check_files(folder: Path, tensors: str, names: tuple[str, ...]) -> None:
    for name in names:
        if not (folder / name).is_file():
            raise BertsmithError("this file is missing", folder / name)
    path = folder / _CHECKSUMS_FILE
    if not path.exists():
        with opened_tensors(folder / tensors) as file:
            if (file.metadata() or {}).keys() >= _MARK.keys():
                raise BertsmithError("this file is missing", path)
        return
    known = files.read_json(path)
    if not isinstance(known, dict) or known.keys() != set(names):
        raise BertsmithError("this file does not hold the checksums of its folder", path)
    for name in names:
        with files.read_errors(folder / name):
            found = files.sha256(folder / name)
        if found != known[name]:
            raise BertsmithError(f"this file does not match its checksum in {_CHECKSUMS_FILE}", folder / name)


@contextmanager
def opened_tensors(path: Path) -> Iterator[Any]:
    """A file of tensors, opened for reading by name. Raises BertsmithError for a damaged one."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise BertsmithError(f"this checkpoint is damaged ({error})", path) from error


def prune(run: Path, newest: Path, keep: int, keep_every: int) -> None:
    """Removes the step folders up to `newest` that are neither among the last `keep` of them nor at a multiple of
    `keep_every` steps (0: none are kept for that), and then the best weights that no step folder refers to."""
    up_to_now = [each for each in step_folders(run) if each.name <= newest.name]
    for old in up_to_now[: max(len(up_to_now) - keep, 0)]:
        if not keep_every or not step_of(old) or step_of(old) % keep_every:
            files.remove_folder(old)
    _remove_unused_best(run)


def _remove_unused_best(run: Path) -> None:
    """All stay where a step folder cannot be read."""
    folders = best_folders(run)
    if not folders:
        return
    try:
        positions = [read_position(folder) for folder in step_folders(run)]
    except BertsmithError as error:
        warn(f"no best weights were removed, because a step folder is damaged: {error.what} ({error.where})")
        return
    used = {best_folder(run, best.step) for each in positions for best in each.bests}
    for folder in folders:
        if folder not in used:
            files.remove_folder(folder)


def drop_checkpoints(run: Path, keep_every: int) -> None:
    """Removes what a finished run needs no more, and says so: step folders that are not kept for good, and best weights
    that no other one refers to."""
    folders = [*step_folders(run), *best_folders(run)]
    sizes = {each: sum(path.lstat().st_size for path in each.iterdir()) for each in folders}
    if folders:
        prune(run, step_folder(run, 10**8 - 1), 0, keep_every)
    removed = [each for each in folders if not each.exists()]
    if removed:
        freed = f"{counted(len(removed), 'folder')}, {size(sum(sizes[each] for each in removed))}"
        say(f"removed checkpoints and best weights ({freed}), which the finished run needs no more")
