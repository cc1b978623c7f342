"""A process as it is without the C++ kernels, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

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
