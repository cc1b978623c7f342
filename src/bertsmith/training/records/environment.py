"""What a run is started on: versions, devices and the state of the code. Never a path, a host's or a user's name."""

from __future__ import annotations

import platform
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import bertsmith
from bertsmith.base import ranks
from bertsmith.base.processes import default_workers
from bertsmith.base.versions import code_state, git_state, processor_name, version_of

_PACKAGES = ("torch", "numpy", "tokenizers", "safetensors")


def environment(device: torch.device) -> dict[str, Any]:
    """The facts of this start, over all ranks; called by every rank.

    device: this rank's. devices: how many ranks compute on each kind of processor or GPU. code, folder: the commit of
    the working tree that the package is run from, and of the one that the command is given in (`git_state`); left out
    where there is none.
    """
    is_cpu = device.type == "cpu"
    devices = Counter(ranks.gathered(processor_name() if is_cpu else torch.cuda.get_device_name(device)))
    trees = {"code": code_state(), "folder": git_state(Path.cwd())} if ranks.is_first() else {}
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "bertsmith": bertsmith.__version__,
        "python": platform.python_version(),
        **{name: version for name in _PACKAGES if (version := version_of(name))},
        **({} if is_cpu else {"cuda": torch.version.cuda}),
        "system": f"{platform.system()} {platform.machine()}",
        "devices": dict(devices),
        "cores": default_workers(),
        "threads": torch.get_num_threads(),
        "ranks": ranks.world_size(),
        **{f"git_{name}": state for name, state in trees.items() if state},
    }
