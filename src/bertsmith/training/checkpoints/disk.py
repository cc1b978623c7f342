"""What a run will need on the disk, before it starts."""

from __future__ import annotations

import shutil
from pathlib import Path

from torch import nn

from bertsmith.base.log import counted, say, size, warn
from bertsmith.training.checkpoints.position import best_folders, step_folders
from bertsmith.training.records.names import MODEL_FOLDER

_FP32 = 4


def tell_disk_need(run: Path, model: nn.Module, keep: int, keep_every: int, steps: int, keeps_best: bool) -> None:
    """Says what the checkpoints, the one being written and the finished model will take beyond what is there already,
    and what is free; warns where it does not fit.

    keep, keep_every: as of `prune`. steps: of the whole run, 0 where time ends it. keeps_best: whether best weights are
    written too. A quota of the user is not seen.
    """
    weights = sum(each.numel() * each.element_size() for each in model.state_dict().values())
    moments = 2 * sum(each.numel() * _FP32 for each in model.parameters() if each.requires_grad)
    # One more than are kept is there while it is being written; there are never more than steps.
    checkpoints = keep + (steps // keep_every if keep_every else 0) + 1
    checkpoints = min(checkpoints, steps) if steps else checkpoints
    saved = size(weights + moments)
    parts = [f"{counted(checkpoints, 'checkpoint')} of {saved} (the one being written included)"]
    total = checkpoints * (weights + moments)
    if keeps_best:
        parts.append(f"as many best weights of {size(weights)}")
        total += checkpoints * weights
    parts.append(f"a finished model of {size(weights)}")
    there, free = _size_of_outcome(run), shutil.disk_usage(run).free
    missing = max(total + weights - there, 0) - free
    said = f"disk: {run} will hold up to {size(total + weights)}: {', '.join(parts)}"
    if keep_every and not steps:
        said += f", and a checkpoint more for every {keep_every:,} steps that it will have taken"
    already = f" ({size(there)} are there already)" if there else ""
    if missing > 0:
        warn(
            f"{said}{already}; but {size(free)} are free, and {size(missing)} are missing: free them, keep fewer "
            "checkpoints, or write to another disk"
        )
    else:
        say(f"{said}{already}; {size(free)} are free")


def _size_of_outcome(run: Path) -> int:
    """Bytes of the checkpoints, best weights and model that a run has already."""
    folders = [*step_folders(run), *best_folders(run), run / MODEL_FOLDER]
    return sum(path.lstat().st_size for folder in folders if folder.is_dir() for path in folder.rglob("*"))
