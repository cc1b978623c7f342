"""The parts of a BERT block, and the block itself: attention and feed-forward, each added and normalised (post-LN).

Legend: T token slots, H hidden width, F feed-forward width.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from bertsmith.model.attention.attend import attend
from bertsmith.model.attention.packed import Offsets
from bertsmith.model.config import BertConfig
from bertsmith.model.dropout import dropout
from bertsmith.model.embedding_lookup import look_up
from bertsmith.model.linear import Linear, activated, joined_linear
from bertsmith.model.residual import LayerNorm, add_mapped


class Embeddings(nn.Module):
    """Word, position and token-type rows summed, normalised, dropped out: fp32 [T, H]."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = config.hidden_dropout_prob

    def forward(self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor, tied: bool = False) -> Tensor:
        """Ids of shape [T] each. tied: a decoder gives the word rows a gradient too, so this one may be sparse: the
        zeros of a whole table, and their sum with the decoder's gradient, are 3% of a CPU's step."""
        # A product with one-hot rows, because the scatter-add of an embedding's gradient into two rows is serial.
        numbers = torch.arange(self.token_type.num_embeddings, device=token_type_ids.device)
        kinds = (token_type_ids[:, None] == numbers).to(self.token_type.weight.dtype)
        words = look_up(self.word.weight, input_ids, sparse=tied)
        rows = words + look_up(self.position.weight, position_ids) + kinds @ self.token_type.weight
        return dropout(self.norm(rows), self.dropout, self.training)


class Attention(nn.Module):
    """Multi-head self-attention within each sequence: [T, H] -> [T, H]. What comes out is for `output` to map, which
    the block applies together with sum and norm. record: is given queries, keys and values, [T, 3, H]."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.record: Callable[[Tensor], None] | None = None
        self.heads, self.dropout = config.num_attention_heads, config.attention_probs_dropout_prob
        self.query, self.key, self.value = Linear(width, width), Linear(width, width), Linear(width, width)
        self.output = Linear(width, width)

    def forward(self, x: Tensor, packed: Offsets) -> Tensor:
        qkv = joined_linear(x, self.query, self.key, self.value).view(x.shape[0], 3, x.shape[1])
        if self.record is not None:
            self.record(qkv)
        return attend(qkv, self.heads, packed, self.dropout if self.training else 0.0)


class FeedForward(nn.Module):
    """The first map and its activation: [T, H] -> [T, F]. What comes out is for `outer` to map to [T, H], which the
    block applies together with sum and norm."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.inner = Linear(config.hidden_size, config.intermediate_size)
        self.outer = Linear(config.intermediate_size, config.hidden_size)
        self.activation = config.hidden_act

    def forward(self, x: Tensor) -> Tensor:
        return activated(x, self.inner, self.activation)


class Block(nn.Module):
    """One layer of the encoder. Takes and gives hidden states [T, H] twice: as wide as the parameters, and in the dtype
    of matrix products, which may be the same tensor.

    What is added and normalised stays as wide as the parameters. In bf16 it would be rounded twice a layer, forward and
    backward, which trebled the error of a model of three layers and made that of some gradients five times as large.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.attention_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.feed_forward = FeedForward(config)
        self.feed_forward_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = config.hidden_dropout_prob

    def forward(self, x: Tensor, narrow: Tensor, packed: Offsets, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """rows: int64[R], those that are wanted; None for all. Gives [R, H] twice."""
        dropout = self.dropout if self.training else 0.0
        attended = self.attention(narrow, packed)
        if rows is not None:
            x, attended = x[rows], attended[rows]
        x, narrow = add_mapped(x, attended, self.attention.output, self.attention_norm, dropout)
        return add_mapped(x, self.feed_forward(narrow), self.feed_forward.outer, self.feed_forward_norm, dropout)


def in_dtype(x: Tensor, compute: torch.dtype | None) -> Tensor:
    """x in the dtype of matrix products; as it is where there is none of its own."""
    return x if compute is None else x.to(compute)
