"""Finding the text that is like another among those of many rows: the loss of training, and the ranks that measure it.

Every row is an anchor, a text that is like it, and perhaps one that is not. The loss is the cross entropy of finding
the own text among those of all rows, by 20 times the cosine (Henderson et al., 2017, "Efficient natural language
response suggestion"; van den Oord et al., 2018). Legend: N rows, H width of a vector, K texts of a row: 2, or 3 where
a row has an unlike one; C candidates: the like texts of all rows, and behind them the unlike ones.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

SCALE = 20.0
"""What cosines are multiplied by, the usual one of sentence-transformers."""
NO_TEXT = -1
_COSINES_AT_ONCE = 1 << 24


def candidates_of(table: Tensor) -> Tensor:
    """The like texts of all rows, then the unlike ones: [N, K, ...] -> [C, ...], C = N * (K - 1)."""
    return table[:, 1:].transpose(0, 1).flatten(0, 1)


def barred(texts: Tensor, rows: Tensor) -> Tensor:
    """Which candidates are no negatives of some rows, bool[R, C]: texts that are the row's own or like it, as far as
    the rows show. These are the row's own anchor and like text wherever else they stand, and the like text of every row
    with the same anchor. A row's own like text is never barred.

    texts: int64[N, K], a number for each text, equal where the texts are; NO_TEXT where there is none. rows: int64[R].
    """
    anchor, like = texts[rows, 0, None], texts[rows, 1, None]
    candidates = candidates_of(texts)
    found = (candidates == like) | (candidates == anchor) | (candidates == NO_TEXT)
    found[:, : len(texts)] |= texts[:, 0] == anchor
    return found.scatter_(1, rows[:, None], False)


def ranking_losses(vectors: Tensor, texts: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each row of a step, fp32[N] with its graph, and whether its own text comes first, bool[N].

    vectors: fp32[N, K, H] of length 1; what stands for a missing text does not matter. texts: as in `barred`.
    """
    own = torch.arange(len(vectors), device=vectors.device)
    scores = SCALE * (vectors[:, 0] @ candidates_of(vectors).T)
    scores = scores.masked_fill(barred(texts, own), -torch.inf)
    losses = torch.nn.functional.cross_entropy(scores, own, reduction="none")
    return losses, scores.argmax(1) == own


def ranks_of_like(vectors: NDArray[np.float32], texts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rank of each row's own text among the candidates that are not barred, from 1: int64[N].

    Of equal cosines the own one counts as the last, so that vectors which are all alike find nothing. Shapes as in
    `ranking_losses`.
    """
    table, numbers = torch.from_numpy(vectors), torch.from_numpy(texts)
    candidates, found = candidates_of(table), []
    at_once = max(1, _COSINES_AT_ONCE // len(candidates))
    for start in range(0, len(table), at_once):
        rows = torch.arange(start, min(start + at_once, len(table)))
        scores = table[rows, 0] @ candidates.T
        own = scores.gather(1, rows[:, None])
        found.append(((scores >= own) & ~barred(numbers, rows)).sum(1))
    return torch.cat(found).numpy()


def rows_with_shared_texts(texts: NDArray[np.int64]) -> int:
    """How many rows bar the text of another one: their anchor or their like text stands in another row, too."""
    counts = np.bincount(texts[texts != NO_TEXT], minlength=1)
    within = (texts[:, :1] == texts[:, 1:2]).astype(np.int64)  # a text that stands twice in its own row
    return int(np.count_nonzero((counts[texts[:, :2]] > 1 + within).any(1)))
