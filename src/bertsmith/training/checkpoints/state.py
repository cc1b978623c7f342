"""The tensors that a checkpoint holds, and copies of them that the next step does not change."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.training.parallel import whole

WEIGHTS = "model."
"""What the names of weights begin with."""
MOMENTS = "optimizer.state."
"""What the names of moments begin with; a parameter has none before its first update."""


def state_of(model: nn.Module, optimizer: ClippedOptimizer) -> dict[str, Tensor]:
    """The tensors of a model and its optimizer themselves, not copies, by their names in a checkpoint.

    Under sharding they are this rank's parts. All ranks have the same names in the same order.
    """
    tensors = {f"{WEIGHTS}{name}": tensor for name, tensor in model.state_dict().items()}
    state = optimizer.state_dict()
    for index, moments in state["state"].items():
        tensors |= {f"{MOMENTS}{index}.{name}": tensor for name, tensor in moments.items()}
    for index, group in enumerate(state["param_groups"]):
        tensors[f"optimizer.group.{index}.step"] = group["step"]
    return tensors | {f"optimizer.loss_scale.{name}": each for name, each in state.get("loss_scale", {}).items()}


def weights_in(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights of a model, by its own names, of the tensors of a checkpoint."""
    return {name.removeprefix(WEIGHTS): each for name, each in tensors.items() if name.startswith(WEIGHTS)}


class Snapshot:
    """Whole tensors in host memory, as they were when they were taken; its buffers are used again by the next one.

    From a GPU they are copied to pinned memory, in the order of the device's queue: the host does not wait, and the
    device's next step begins when they are copied. tensors: by name; to be read after `wait`.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._copied: torch.cuda.Event | None = None

    @torch.no_grad()
    def take(self, tensors: Mapping[str, Tensor], *, keep: bool) -> None:
        """Copies tensors, gathered one by one where they are sharded: then all ranks call it, alike.

        keep: whether this rank is the one that holds the copies.
        """
        buffers, device = self.tensors, None
        self.tensors = {}
        for name, tensor in tensors.items():
            values = whole(tensor.detach())
            if keep:
                device = values.device if values.is_cuda else device
                self.tensors[name] = _buffer(buffers.get(name), values).copy_(values, non_blocking=True)
        self._copied = None
        if device is not None:
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(device))

    def wait(self) -> None:
        """Waits until the copies are made."""
        if self._copied is not None:
            self._copied.synchronize()


def _buffer(old: Tensor | None, like: Tensor) -> Tensor:
    """The old buffer where it fits, else a new one; pinned for what comes from a GPU."""
    if old is not None and old.shape == like.shape and old.dtype == like.dtype and old.is_pinned() == like.is_cuda:
        return old
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.is_cuda)
