"""A process as it is without the C++ kernels, or with another number of threads, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from bertsmith.model import cpu_kernels, weight_gradients


@contextmanager
def kernels_unused() -> Iterator[None]:
    """Leaves all to PyTorch's operators, until something loads the kernels."""
    kept = cpu_kernels._library, weight_gradients._library
    cpu_kernels.unload()
    try:
        yield
    finally:
        cpu_kernels._library, weight_gradients._library = kept


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Has PyTorch and the kernels use so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
