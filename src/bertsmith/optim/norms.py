"""L2 norms of many tensors, computed on their device without reading them on the host."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def tensor_norms(tensors: Sequence[Tensor]) -> Tensor:
    """The L2 norm of each of n tensors: fp32 [n], on their device.

    PyTorch on a CPU sums a whole tensor in a few fp32 lanes: for a word embedding of 30,522 x 768 the norm is 0.1% too
    small. The norm of the norms of rows is right to 1e-7 and takes less time.
    """
    if tensors[0].device.type == "cpu":
        return torch.stack([torch.linalg.vector_norm(torch.linalg.vector_norm(each, dim=-1)) for each in tensors])
    return torch.stack(torch._foreach_norm(list(tensors)))


def global_norm(tensors: Sequence[Tensor]) -> Tensor:
    """The L2 norm of n tensors as one vector: a scalar on their device."""
    norm: Tensor = torch.linalg.vector_norm(tensor_norms(tensors))
    return norm
