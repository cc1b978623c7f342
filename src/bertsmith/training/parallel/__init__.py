"""How ranks share the work of a step: each holds all weights, or a shard of them (`docs/what-is-reduced.md`)."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from bertsmith.base.ranks import world_size
from bertsmith.optim.norms import in_shards
from bertsmith.training.parallel.replicate import Replicated

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

    from bertsmith.training.parallel.shard import Sharded


class Gradients(Protocol):
    """Sums the gradients of a model over ranks, once a step."""

    def begin(self) -> None:
        """Before the first micro-batch, when the optimizer has dropped the gradients of the step before."""

    def before_last(self) -> None:
        """Before the last micro-batch, in whose backward pass sums may be started."""

    def finish(self) -> Tensor | None:
        """After the last micro-batch: when this returns, whatever reads a gradient reads the sum over ranks.

        Returns which ranks' own gradients were not finite, fp32[ranks], 1 for each; None where there is one rank.
        """

    def drop(self) -> None:
        """Instead of `finish`, on all ranks, where a step is given up before a backward pass: the
        weights may then be saved, as they were before the step. Sharded ones may not be trained any more."""


class _Alone:
    """One rank: gradients are left as autograd makes them."""

    def begin(self) -> None: ...
    def before_last(self) -> None: ...
    def finish(self) -> None: ...
    def drop(self) -> None: ...


_shared: WeakKeyDictionary[nn.Module, Replicated | Sharded] = WeakKeyDictionary()


def replicate(model: nn.Module, sums: torch.dtype | None = None) -> None:
    """All ranks hold all weights. sums: the dtype in which gradients travel; that of the weights, if None. In between
    they are kept in that of the weights."""
    _shared[model] = Replicated([each for each in model.parameters() if each.requires_grad], sums)


def shard(
    model: nn.Module,
    layers: Iterable[nn.Module],
    compute: torch.dtype | None = None,
    sums: torch.dtype | None = None,
) -> None:
    """Each rank keeps a part of each matrix and gathers the others when they are needed; before an optimizer is made.

    layers: modules of the model, each gathered as one, in the dtype `compute`; what is outside them is gathered
    in its own. sums: as in `replicate`.
    """
    from bertsmith.training.parallel.shard import Sharded  # here, for PyTorch's FSDP2 takes a second to import

    _shared[model] = Sharded(model, layers, compute, sums)


def gradients_of(model: nn.Module) -> Gradients:
    """How ranks share this model's gradients: by `replicate` or `shard`; else replicated, where there are several."""
    found = _shared.get(model)
    if found is not None and found.ranks == world_size():
        return found
    if world_size() == 1:
        return _Alone()
    replicate(model)
    return _shared[model]


def is_sharded(model: nn.Module) -> bool:
    """Whether the ranks hold shards, so that all must run the model equally often. As of `in_shards`, whatever sharded
    one has imported its class."""
    module = sys.modules.get("torch.distributed.fsdp")
    return module is not None and isinstance(model, module.FSDPModule)


def reshard(model: nn.Module) -> None:
    """Gives back what the last forward pass gathered, where no backward pass follows it."""
    if is_sharded(model):
        cast("FSDPModule", model).reshard()


def whole(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded over ranks; then all ranks must call it, in the same order."""
    return tensor.full_tensor() if in_shards(tensor) else tensor


@torch.no_grad()
def fill_from_whole(target: Tensor, values: Tensor) -> None:
    """Copies the whole values, which every rank holds, into a tensor that may be sharded over ranks."""
    if in_shards(target):
        from torch.distributed.tensor import distribute_tensor

        values = values.to(target.device)
        values = distribute_tensor(values, target.device_mesh, target.placements, src_data_rank=None)
    target.copy_(values)
