"""Which GPU a rank takes."""

from __future__ import annotations

import torch

from bertsmith.base.errors import BertsmithError
from bertsmith.base.log import counted


def own_gpu(device: str, local_rank: int) -> torch.device | None:
    """The GPU of the rank with this number on its host, for a device as the user has set it; None for the CPU.

    Two ranks may choose the same one here: they find out when they meet. Raises BertsmithError where it is not there.
    """
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if not device.startswith("cuda") and (device != "auto" or not found):
        return None
    if not found:
        raise BertsmithError("no GPU was found that PyTorch can use", "--device", "use --device cpu, or auto")
    try:
        named = None if device == "auto" else torch.device(device).index
    except RuntimeError as error:
        raise BertsmithError(f"device '{device}' is not known", "--device", "use auto, cpu, cuda or cuda:N") from error
    # A scheduler that binds tasks to GPUs shows each task its own alone.
    index = named if named is not None else local_rank if found > 1 else 0
    if index >= found:
        what = f"this is process {local_rank + 1} of its host, which has {counted(found, 'GPU')}"
        if named is not None:
            what = f"device '{device}' does not exist: this host has {counted(found, 'GPU')}"
        raise BertsmithError(what, "CUDA", "start one process for each GPU")
    return torch.device("cuda", index)


def identity(gpu: torch.device | None) -> str:
    """By which a GPU differs from all others, of other hosts too; "" for the CPU."""
    return str(torch.cuda.get_device_properties(gpu).uuid) if gpu is not None else ""
