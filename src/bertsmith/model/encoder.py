"""The encoder: embeddings, blocks, pooler, on packed sequences; and the padded face that other tools know.

Legend: T token slots, S sequences, H hidden width, B rows, L columns of a padded batch.
"""

from __future__ import annotations

from functools import cache

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertsmith.base.errors import BertsmithError
from bertsmith.base.layout import Layout
from bertsmith.base.log import warn
from bertsmith.model.attention.packed import Offsets, Packed
from bertsmith.model.checks import check_ids, padded_input
from bertsmith.model.config import BertConfig
from bertsmith.model.copies import keep_once
from bertsmith.model.layers import Block, Embeddings, in_dtype
from bertsmith.model.linear import Linear


class Encoder(nn.Module):
    """BERT without a head.

    compute: the dtype of matrix products; hidden states are as wide as the parameters. gradient_checkpointing: keep
    only what each block is given, and compute the block again in the backward pass, with the same dropout. Raises
    BertsmithError for a `compute` that is no dtype of floating-point numbers.
    """

    def __init__(self, config: BertConfig, compute: torch.dtype | None = None) -> None:
        super().__init__()
        if compute is not None and not (isinstance(compute, torch.dtype) and compute.is_floating_point):
            fix = "give a dtype of floating-point numbers, such as torch.bfloat16"
            raise BertsmithError(f"compute is {compute!r}", "compute", fix)
        self.config = config
        self.compute = compute
        self.gradient_checkpointing = False
        self.embeddings = Embeddings(config)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_hidden_layers))
        self.pooler = Linear(config.hidden_size, config.hidden_size)

    def keep_weights_once(self) -> None:
        """Keeps the matrices of the blocks and the pooler as products take them, without copies beside them: in their
        dtype, and joined where they are multiplied together. For a model that is not trained any more; its outputs stay
        the same to the bit. Biases, norms and embeddings are as wide as before.
        """
        compute = self.compute or self.embeddings.word.weight.dtype
        groups = [[self.pooler]] if hasattr(self, "pooler") else []  # a model that reads no pooler drops it
        for layer in self.layers:
            assert isinstance(layer, Block)
            attention, feed_forward = layer.attention, layer.feed_forward
            groups += [[attention.query, attention.key, attention.value], [attention.output]]
            groups += [[feed_forward.inner], [feed_forward.outer]]
        for group in groups:
            keep_once(compute, *(each.weight for each in group))

    def forward(
        self,
        input_ids: Tensor,
        token_type_ids: Tensor,
        position_ids: Tensor,
        packed: Offsets,
        *,
        tied: bool = False,
        rows: Tensor | None = None,
    ) -> Tensor:
        """Ids of shape int64[T] each -> hidden states [T, H] of the last layer. tied: see `Embeddings`.

        rows: int64[R], those of the last layer that are wanted; the others are not computed behind its attention: [R,
        H]. Raises BertsmithError for ids that the model has no row for; not on a GPU, where looking would wait for it.
        """
        if not input_ids.is_cuda and not torch.compiler.is_compiling():
            check_ids(self.config, input_ids, token_type_ids, position_ids)
        x, narrow = self.embed(input_ids, token_type_ids, position_ids, tied)
        for left, layer in zip(range(len(self.layers) - 1, -1, -1), self.layers, strict=True):
            x, narrow = self.through(layer, x, narrow, packed, None if left else rows)
        return x

    def embed(
        self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor, tied: bool
    ) -> tuple[Tensor, Tensor]:
        """What the first block is given: hidden states [T, H] twice (`Block`). Ids of shape int64[T] each."""
        x = self.embeddings(input_ids, token_type_ids, position_ids, tied)
        return x, in_dtype(x, self.compute)

    def through(
        self, layer: nn.Module, x: Tensor, narrow: Tensor, packed: Offsets, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What a block of this encoder makes of hidden states (`Block`)."""
        out: tuple[Tensor, Tensor]
        if self.gradient_checkpointing and torch.is_grad_enabled():
            out = checkpoint(layer, x, narrow, packed, rows, use_reentrant=False)
        else:
            out = layer(x, narrow, packed, rows)
        return out

    def pool(self, hidden: Tensor, packed: Offsets) -> Tensor:
        """tanh of a linear map of each sequence's [CLS]: [T, H] -> [S, H].

        An empty sequence has none: its row is another's, or that of zeros where all are empty, and means nothing.
        """
        if not len(hidden):
            hidden = hidden.new_zeros(1, hidden.shape[-1])
        return self._pooled(hidden[packed.first_slots])

    def pooled(self, input_ids: Tensor, token_type_ids: Tensor, position_ids: Tensor, packed: Offsets) -> Tensor:
        """What `pool` makes of what `forward` gives, [S, H], for a model that reads nothing else: of the last layer's
        maps only [CLS] passes those behind attention, which are an eighth of the products of 6 layers. A hook of the
        last layer gets all of it."""
        ids = (input_ids, token_type_ids, position_ids)
        if not packed.tokens or self.layers[-1]._forward_hooks:
            return self.pool(self(*ids, packed), packed)
        return self._pooled(self(*ids, packed, rows=packed.first_slots))

    def _pooled(self, first: Tensor) -> Tensor:
        return torch.tanh(self.pooler(in_dtype(first, self.compute)))

    def encode_padded(
        self,
        input_ids: ArrayLike | Tensor,
        attention_mask: ArrayLike | Tensor | None = None,
        token_type_ids: ArrayLike | Tensor | None = None,
    ) -> Tensor:
        """int64[B, L] each, as tensors, arrays or lists -> [B, L, H], as transformers' BertModel gives it; zeros where
        the mask is 0.

        A slot's position is its column, as there. Without a mask all is real, of which rows that begin or end in [PAD]
        are warned once; without token types all are 0.
        Raises BertsmithError for what is no table of numbers, shapes that differ, a mask of anything but 0 and 1, and
        ids without a row.
        """
        device = self.embeddings.word.weight.device
        ids, real, kinds = padded_input(input_ids, attention_mask, token_type_ids, device)
        if attention_mask is None and bool((ids[:, :: max(ids.shape[1] - 1, 1)] == self.config.pad_token_id).any()):
            _warn_of_padding()
        rows, columns = real.nonzero(as_tuple=True)
        chosen = (ids[rows, columns], kinds[rows, columns], columns)
        if ids.is_cuda:  # elsewhere forward looks
            check_ids(self.config, *chosen)
        packed = Packed(Layout.from_lengths(real.sum(1).cpu().numpy()), ids.device)
        hidden = self(*chosen, packed)
        padded = hidden.new_zeros(*ids.shape, hidden.shape[-1])
        out: Tensor = padded.index_put((rows, columns), hidden)
        return out


@cache
def _warn_of_padding() -> None:
    warn("there is no attention_mask, so [PAD] is read as a piece of the text: give 1 for what is real, 0 for padding")


def encoder_of(model: nn.Module) -> Encoder:
    """The encoder of a model that has a head on one."""
    encoder = model.encoder
    assert isinstance(encoder, Encoder)
    return encoder
