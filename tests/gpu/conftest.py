"""These tests need a CUDA device; on a machine without one each is skipped with that reason."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def cuda() -> torch.device:
    """The first CUDA device; skips where there is none."""
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device was found")
    return torch.device("cuda", 0)
