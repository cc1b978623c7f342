"""A checkpoint of another tool, once it is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor


@dataclass(frozen=True)
class Foreign:
    """A checkpoint that was read. where: its file. tensors: under Hugging Face's names, or names that are none.

    left_out: what it also holds, a phrase for each kind.
    """

    where: Path
    tensors: Mapping[str, Tensor]
    left_out: tuple[str, ...] = ()
