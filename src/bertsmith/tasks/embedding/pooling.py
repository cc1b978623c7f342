"""A model that gives one vector for each sequence, out of the hidden states of its tokens.

Legend: T token slots, S sequences, G texts, H hidden width.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertsmith.model.config import BertConfig
from bertsmith.model.encoder import Encoder
from bertsmith.tasks.sequences import Inputs, Sequences, batch_window_means, segment_means, window_means

Pooling = Literal["mean", "cls", "max"]
POOLINGS: tuple[str, ...] = get_args(Pooling)


class VectorModel(nn.Module):
    """An encoder whose last hidden states become one vector for each sequence.

    pooling: mean is over all tokens, [CLS] and [SEP] included, as in sentence-transformers; cls takes the first one's;
    max the highest of each number. unit: vectors are scaled to length 1. dimensions: then all but the first so many
    numbers of a vector are dropped. BERT's own pooler, which has no part in this, stays as it is, because transformers'
    BertModel has one.
    """

    def __init__(
        self,
        config: BertConfig,
        pooling: Pooling = "mean",
        compute: torch.dtype | None = None,
        unit: bool = True,
        dimensions: int | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.pooling = pooling
        self.unit = unit
        self.dimensions = min(dimensions or config.hidden_size, config.hidden_size)
        self.encoder = Encoder(config, compute)
        self.encoder.pooler.requires_grad_(False)

    def forward(self, inputs: Inputs) -> Tensor:
        """The vectors of the sequences asked for, fp32[S, H]."""
        offsets = inputs.packed.offsets[: inputs.asked.sequences + 1].long()
        return self.vectors(self.states(inputs), offsets)

    def vectors(self, hidden: Tensor, offsets: Tensor) -> Tensor:
        """Of the last hidden states of all tokens, [T, H] -> [S, H]; offsets as of `pooled`."""
        vectors = pooled(hidden, offsets, self.pooling)
        return (nn.functional.normalize(vectors) if self.unit else vectors)[:, : self.dimensions]

    def states(self, inputs: Inputs) -> Tensor:
        """The last hidden states of the tokens of the sequences asked for, fp32[T, H]."""
        hidden: Tensor = self.encoder(inputs.input_ids, inputs.token_type_ids, inputs.position_ids, inputs.packed)
        return hidden[: inputs.asked.tokens].float()


def pooled(hidden: Tensor, offsets: Tensor, pooling: Pooling) -> Tensor:
    """[T, H] -> [S, H]. offsets: int64[S + 1], where each sequence begins; none is empty."""
    if pooling == "cls":
        return hidden[offsets[:-1]]
    if pooling == "max":
        return torch.segment_reduce(hidden, "max", offsets=offsets, axis=0, unsafe=True)
    return segment_means(hidden, offsets)


def batch_text_vectors(vectors: Tensor, inputs: Inputs) -> Tensor:
    """A vector of length 1 for each text of a batch, [G, H]: the mean of those of its windows, [S, H], scaled."""
    means = batch_window_means(vectors, inputs)
    return means if len(means) == len(vectors) else nn.functional.normalize(means)


def text_vectors(vectors: NDArray[np.float32], sequences: Sequences, unit: bool = True) -> NDArray[np.float32]:
    """A vector for each text of all records, float32[G, H]: the mean of those of its windows, of [S, H]; with `unit`
    scaled to length 1, as those are. A text of one window keeps its vector as it is."""
    means, windows = window_means(vectors, sequences), np.diff(sequences.text_starts, append=len(vectors))
    if unit and (several := windows > 1).any():
        means[several] = unit_vectors(means[several])
    return means


def unit_vectors(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scaled to length 1: float32[N, H]."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)
