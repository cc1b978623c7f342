"""BERT with its pre-training heads: the masked word, and, of pairs, whether the second segment follows the first.

Legend: T token slots, S sequences, M masked slots, V vocabulary, H hidden width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from bertsmith.base.errors import BertsmithError
from bertsmith.model.attention.packed import Offsets
from bertsmith.model.checks import check_slots
from bertsmith.model.config import BertConfig
from bertsmith.model.encoder import Encoder
from bertsmith.model.layers import in_dtype
from bertsmith.model.linear import Linear, activated, product
from bertsmith.model.losses import LossSum, cross_entropy_sum
from bertsmith.model.residual import LayerNorm


def _fills(device: torch.device) -> bool:
    """Whether products get scores of no piece, for a width that they are fast with: where the compiler makes a copy of
    the weights anyhow."""
    return device.type == "cuda" and torch.compiler.is_compiling()


@dataclass
class PretrainInputs:
    """A packed micro-batch on the device.

    input_ids, token_type_ids, position_ids: int64[T]. masked_positions, masked_labels: int64[M], slots and the ids that
    stood there. next_sentence_labels: int64[S], 0 where the second segment follows the first, 1 where it is random,
    -100 where there is none.
    """

    input_ids: Tensor
    token_type_ids: Tensor
    position_ids: Tensor
    packed: Offsets
    masked_positions: Tensor
    masked_labels: Tensor
    next_sentence_labels: Tensor


class PretrainLosses(NamedTuple):
    """The summed losses of a micro-batch: of its masked words, and of whether the second segment follows the first."""

    masked: LossSum
    next_sentence: LossSum


# What a GPU's products want their widths to be multiples of.
_MULTIPLE = 64


class MaskedHead(nn.Module):
    """Map, activation, LayerNorm, and the word embeddings as decoder with a bias of its own: [M, H] -> [M, V].

    With `filled` there are more scores, as many as make a multiple of 64: those of no piece are -inf, so that they
    change no loss and get no gradient. The weights stay as they are.
    """

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.transform = Linear(config.hidden_size, config.hidden_size)
        self.activation = config.hidden_act
        self.norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))

    def forward(self, hidden: Tensor, word_embeddings: Tensor, filled: bool = False) -> Tensor:
        x = self.norm(activated(hidden, self.transform, self.activation)).to(hidden.dtype)
        more = -len(self.bias) % _MULTIPLE if filled else 0
        if not more:
            return product(x, [word_embeddings], [self.bias])
        no_rows = word_embeddings.new_zeros(more, word_embeddings.shape[1])
        return product(x, [word_embeddings, no_rows], [self.bias, self.bias.new_full((more,), -math.inf)])


class PretrainingModel(nn.Module):
    """Encoder, masked-word head and next-sentence head.

    pairs: whether it learns of pairs; without them it has no next-sentence head, and no pooler, which feeds that.
    """

    def __init__(self, config: BertConfig, compute: torch.dtype | None = None, pairs: bool = True) -> None:
        super().__init__()
        self.config = config
        self.pairs = pairs
        self.encoder = Encoder(config, compute)
        self.masked_head = MaskedHead(config)
        if pairs:
            self.next_sentence = Linear(config.hidden_size, 2)
        else:
            del self.encoder.pooler

    def masked_logits(self, hidden: Tensor, masked_positions: Tensor, filled: bool = False) -> Tensor:
        """Scores of every piece at the masked slots only: hidden[T, H], int64[M] -> [M, V]; filled: see MaskedHead.

        Raises BertsmithError for other shapes; and for positions that are no slots, on a CPU alone, as a GPU would be
        waited for.
        """
        if hidden.ndim != 2 or masked_positions.ndim != 1:
            what = f"hidden states of shape {list(hidden.shape)} and positions of shape {list(masked_positions.shape)}"
            fix = "give states of shape [T, H], of padded rows [B * L, H], and positions of shape [M]"
            raise BertsmithError(what, "the masked positions", fix)
        if hidden.device.type == "cpu" and not torch.compiler.is_compiling():
            check_slots(masked_positions, len(hidden))
        masked = in_dtype(hidden[masked_positions], self.encoder.compute)
        logits: Tensor = self.masked_head(masked, self.encoder.embeddings.word.weight, filled)
        return logits

    def next_sentence_logits(self, hidden: Tensor, packed: Offsets) -> Tensor:
        """Scores of "is next" and "is random" for each sequence: hidden[T, H] -> [S, 2]."""
        logits: Tensor = self.next_sentence(self.encoder.pool(hidden, packed))
        return logits

    def losses(self, batch: PretrainInputs) -> PretrainLosses:
        """The masked-word and the next-sentence loss of a micro-batch, summed, with their counts."""
        ids = (batch.input_ids, batch.token_type_ids, batch.position_ids)
        return self.losses_of(self.encoder(*ids, batch.packed, tied=True), batch)

    def losses_of(self, hidden: Tensor, batch: PretrainInputs) -> PretrainLosses:
        """`losses` of what the encoder makes of a micro-batch, [T, H]."""
        logits = self.masked_logits(hidden, batch.masked_positions, filled=_fills(hidden.device))
        masked = cross_entropy_sum(logits, batch.masked_labels)
        pair_logits = self.next_sentence_logits(hidden, batch.packed) if self.pairs else None
        return PretrainLosses(masked, next_sentence_sum(pair_logits, batch))

    def scores(self, batch: PretrainInputs) -> tuple[Tensor, Tensor | None]:
        """What `losses` compares with the labels: [M, V] for masked words and, where there are, [S, 2] for pairs."""
        ids = (batch.input_ids, batch.token_type_ids, batch.position_ids)
        return self.scores_of(self.encoder(*ids, batch.packed), batch)

    def scores_of(self, hidden: Tensor, batch: PretrainInputs) -> tuple[Tensor, Tensor | None]:
        """`scores` of what the encoder makes of a micro-batch, [T, H]."""
        pair_logits = self.next_sentence_logits(hidden, batch.packed) if self.pairs else None
        return self.masked_logits(hidden, batch.masked_positions), pair_logits

    def forward(self, batch: PretrainInputs) -> PretrainLosses:
        """The same as `losses`."""
        return self.losses(batch)


def next_sentence_sum(logits: Tensor | None, batch: PretrainInputs) -> LossSum:
    """The loss of the pairs, of their scores [S, 2]; zeros without scores."""
    if logits is None:
        zero = torch.zeros((), device=batch.input_ids.device)
        return LossSum(zero, zero, zero)
    return cross_entropy_sum(logits, batch.next_sentence_labels)
