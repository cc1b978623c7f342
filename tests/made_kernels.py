"""The C++ kernels left out for a while, or with a fault planted in their source; and another number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest
import torch

from bertsmith.model.cpu import kernels as cpu_kernels
from bertsmith.model.cpu import weight_gradients


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


def plant(module: ModuleType, fault: tuple[str, str], folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Has `module` compile its source with the first text of the fault, which stands there once, made the second."""
    source, (right, wrong) = module._SOURCE.read_text(encoding="utf-8"), fault
    assert source.count(right) == 1
    planted = folder / module._SOURCE.name
    planted.write_text(source.replace(right, wrong), encoding="utf-8")
    patch.setenv("XDG_CACHE_HOME", str(folder))
    patch.setattr(module, "_SOURCE", planted)
