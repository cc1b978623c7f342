"""Weights in shards, by PyTorch's FSDP2: every rank keeps and updates its rows of each matrix.

Matrices of a layer are gathered before its forward and before its backward pass, in the dtype of products, and what is
outside of layers once a step, in its own. Biases and LayerNorms, 0.1% of a BERT, stay whole on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from bertsmith.base.ranks import world_size
from bertsmith.model.copies import keep_no_copies
from bertsmith.training.parallel.reached import Reached
from bertsmith.training.parallel.replicate import Replicated

# Methods besides `forward` by which a model is run, and so is to be gathered.
_ENTRIES = ("scores",)
# PyTorch 2.13 has a new name for it, and warns of the old one.
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Sharded:
    """`Gradients` of a model whose matrices are sharded here."""

    def __init__(
        self, model: nn.Module, layers: Iterable[nn.Module], compute: torch.dtype | None, sums: torch.dtype | None
    ) -> None:
        """Shards the model in place. See `bertsmith.training.parallel.shard`."""
        self.ranks = world_size()
        first = next(model.parameters())
        vectors = [each for each in model.parameters() if each.ndim < 2]
        self._comm = _Sums(sums or first.dtype)
        mesh = init_device_mesh(first.device.type, (self.ranks,))
        ignored = cast(set[nn.Parameter], set(vectors))

        def split(module: nn.Module, dtype: torch.dtype | None, gathered_twice: bool) -> None:
            # The gradients of micro-batches are added up in the dtype of the weights.
            policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=first.dtype, cast_forward_inputs=False)
            fully_shard(
                module, mesh=mesh, reshard_after_forward=gathered_twice, mp_policy=policy, ignored_params=ignored
            )

        for layer in layers:
            split(layer, compute, True)
        # Gathered in its own dtype, because embeddings are added up in it.
        split(model, None, False)
        for name in _ENTRIES:
            register_fsdp_forward_method(model, name)
        self._root = cast(FSDPModule, model)
        matrices = {name: each for name, each in model.named_parameters() if each.ndim > 1}
        self._reached = Reached(list(matrices.values()))
        self._number_of = {name: number for number, name in enumerate(matrices)}
        for module in model.modules():
            if isinstance(module, FSDPModule):
                self._set_up(module, model)
        # What reads every vector and is tiny: summed when all else is.
        self._vectors = Replicated(vectors, sums)

    def _set_up(self, module: FSDPModule, model: nn.Module) -> None:
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)  # gloo can do no other
        module.set_custom_reduce_scatter(cast(Any, self._comm))
        if hasattr(module, "set_reduce_scatter_unused_params"):
            module.set_reduce_scatter_unused_params(True, recurse=False)
        # The same tensors are filled by every gather, which counts as no change of them.
        module.unshard()
        keep_no_copies(each for each in cast(nn.Module, module).parameters() if each.ndim > 1)
        for name, each in model.named_parameters():
            if each.ndim > 1 and not isinstance(each, DTensor):  # whole while it is gathered: this module's
                self._watch(each, self._number_of[name])
        module.reshard()

    def _watch(self, gathered: nn.Parameter, number: int) -> None:
        reached = self._reached
        gathered.register_post_accumulate_grad_hook(lambda _: reached.note(number))  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Until `before_last` gradients are only added up, in the dtype of the weights."""
        self._vectors.begin()
        self._comm.norms.clear()
        self._root.set_requires_gradient_sync(False)
        # What is outside of layers is gathered at the first micro-batch and kept until the last.
        self._root.set_reshard_after_backward(False, recurse=False)

    def before_last(self) -> None:
        """Sums of a layer start when its backward pass ends."""
        self._root.set_requires_gradient_sync(True)
        self._root.set_reshard_after_backward(True, recurse=False)

    def finish(self) -> Tensor | None:
        """Sums the gradients of vectors; FSDP2 has made those of matrices by the end of the backward pass."""
        faulty = self._vectors.finish(self._comm.norms)
        self._reached.drop_others()
        return faulty

    def drop(self) -> None:
        """Gives back what the step has gathered."""
        self._root.reshard()


class _Sums:
    """FSDP2's reduce-scatter, in a dtype that may be narrower than that in which micro-batches were added up.

    norms: of what this rank brought, since the list was cleared.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self.norms: list[Tensor] = []

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The memory of a sum."""
        return torch.empty(tuple(size), dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        """input_tensor: [ranks x n], this rank's. output_tensor: [n], this rank's part of the sum."""
        self.norms.append(torch.linalg.vector_norm(input_tensor))
        if self._dtype == input_tensor.dtype:
            work: dist.Work | None = _reduce_scatter(output_tensor, input_tensor, op=op, group=group, async_op=async_op)
            return work
        narrow = torch.empty_like(output_tensor, dtype=self._dtype)
        _reduce_scatter(narrow, input_tensor.to(self._dtype), op=op, group=group)
        output_tensor.copy_(narrow)
        return None
