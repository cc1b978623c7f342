"""Giving a model the rows of a larger vocabulary."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from bertsmith.model.pretraining import PretrainingModel


def extend_vocabulary(model: PretrainingModel, rows: int, made_of: Mapping[int, Sequence[int]]) -> None:
    """Gives the model `rows` word embeddings and as many biases of the masked-word head, in place.

    made_of: by the number of each row that is new (or has another piece than before), the old rows whose mean it
    begins as: those of the pieces that stood for the word. All other rows keep their bits. Raises ValueError where a
    row beyond the old ones is not in `made_of`.
    """
    old = model.config.vocab_size
    missing = set(range(old, rows)) - made_of.keys()
    if rows < old or missing:
        raise ValueError(f"{rows} rows of {old}: {len(missing)} of them are made of nothing")
    embeddings, head = model.encoder.embeddings, model.masked_head
    embeddings.word.weight = nn.Parameter(_extended(embeddings.word.weight, rows, made_of))
    embeddings.word.num_embeddings = rows
    head.bias = nn.Parameter(_extended(head.bias, rows, made_of))
    model.config = model.encoder.config = dataclasses.replace(model.config, vocab_size=rows)


@torch.no_grad()
def _extended(old: Tensor, rows: int, made_of: Mapping[int, Sequence[int]]) -> Tensor:
    new = torch.cat([old, old.new_zeros(rows - len(old), *old.shape[1:])])
    for row, parts in made_of.items():
        new[row] = old[list(parts)].mean(dim=0)
    return new
