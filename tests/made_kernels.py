"""What tests of the C++ kernels share: the kernels left out or with a planted fault, threads, and numbers for them.

Legend: T token slots, H width.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import Tensor

from bertsmith.model.cpu import library


@contextmanager
def kernels_unused() -> Iterator[None]:
    """Leaves all to PyTorch's operators, until something loads the kernels, as in a new process."""
    kept, used = library._kernels, library.is_loaded()
    library.unload()
    library._kernels = {}
    try:
        yield
    finally:
        library._kernels, library._here.uses_them = kept, used


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Has PyTorch and the kernels use so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def plant(fault: tuple[str, str], folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Has the kernels compiled with the first text of the fault, which stands there once, replaced by the second."""
    right, wrong = fault
    planted = Path(shutil.copytree(library._SOURCE.parent, folder / "planted"))
    texts = {path: path.read_text(encoding="utf-8") for path in planted.iterdir() if path.suffix in (".cpp", ".h")}
    assert sum(text.count(right) for text in texts.values()) == 1
    for path, text in texts.items():
        path.write_text(text.replace(right, wrong), encoding="utf-8")
    patch.setenv("XDG_CACHE_HOME", str(folder))
    patch.setattr(library, "_SOURCE", planted / library._SOURCE.name)


def draw(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def rows_for(seed: int, rows: int, columns: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """x fp32[T, H], y [T, H] of the dtype, bias, weight and shift fp32[H]."""
    x, y = draw(seed, rows, columns), draw(seed + 1, rows, columns, dtype=dtype)
    return x, y, *draw(seed + 2, 3, columns)


def exact_derivative(name: str, x: Tensor) -> Tensor:
    """The derivative as it is written down, with nothing lost where terms almost cancel."""
    if name == "relu":
        return (x > 0).double()
    if name == "gelu":
        return torch.special.erfc(-x / math.sqrt(2)) / 2 + x * torch.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    steep = math.sqrt(8 / math.pi)
    share = torch.sigmoid(steep * (x + 0.044715 * x**3))
    return share + x * share * (1 - share) * steep * (1 + 3 * 0.044715 * x * x)
