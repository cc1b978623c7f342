"""The ids that BERT's input is built with, and the type that ids of a vocabulary are stored in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class SpecialIds:
    """The ids of the five pieces that BERT's input is built with, and the number of rows of the vocabulary."""

    pad: int
    unknown: int
    cls: int
    sep: int
    mask: int
    vocabulary_size: int


def token_dtype(vocabulary_size: int) -> np.dtype[Any]:
    """uint16 up to 65,535 pieces, else uint32."""
    return np.dtype(np.uint16 if vocabulary_size <= 65_535 else np.uint32)
