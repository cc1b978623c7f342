"""Fresh weights for short runs: positions are waves, and some heads begin by reading the words beside them.

A model drawn as BERT's first learns which words go together, and finds out where they stand only after some thousands
of steps. With sine waves as positions a shift is a rotation (Vaswani et al., 2017, 3.5), so a head whose keys copy
waves and whose queries copy them rotated by one step attends to the next word. Training is free to unlearn it.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor

from bertsmith.base.streams import stream_key
from bertsmith.model.encoder import Encoder
from bertsmith.model.layers import Block

# The fastest wave has a period of two positions, the slowest one of two thousand.
_FASTEST, _SPAN = math.pi, 1000.0
# The score of the wanted neighbour above that of far words: enough to single it out among hundreds.
_SHARPNESS = 14.0
_LAYERS = 2


def look_at_neighbours(encoder: Encoder, deviation: float, seed: int) -> None:
    """Makes positions waves and points half of the heads of the first two layers at the words before and after.

    The last layer's heads, which attend about evenly while they are fresh, pass on in full what they gather: so
    [CLS] has something to tell of the whole sequence. encoder: freshly drawn, its embeddings with `deviation`.
    """
    config = encoder.config
    width = config.head_size
    # After the embeddings' LayerNorm the waves are one of three equal shares of a variance of 1.
    gain = math.sqrt(3 * _SHARPNESS / math.sqrt(width))
    rates = wave_rates(config.hidden_size)[: width // 2]
    attentions = [cast(Block, layer).attention for layer in encoder.layers]
    with torch.no_grad():
        positions = encoder.embeddings.position.weight
        positions.copy_(deviation * waves(*positions.shape))
        for attention in attentions[:_LAYERS]:
            for head in range(config.num_attention_heads // 2):
                shift = (head // 2 + 1) * (1 if head % 2 else -1)
                rows = slice(head * width, head * width + 2 * len(rates))
                columns = slice(0, 2 * len(rates))
                attention.key.weight[rows, columns] += gain * torch.eye(2 * len(rates))
                attention.query.weight[rows, columns] += gain * rotation(rates, shift)
        for name, linear in (("value", attentions[-1].value), ("output", attentions[-1].output)):
            generator = torch.Generator().manual_seed(stream_key(seed, "weights", f"gathering.{name}") >> 1)
            torch.nn.init.orthogonal_(linear.weight, generator=generator)


def wave_rates(width: int) -> Tensor:
    """Radians a position of `width` / 2 waves, evenly spaced on a logarithmic scale, the fastest first."""
    pairs = (width + 1) // 2
    return _FASTEST * torch.exp(torch.arange(pairs) * (-math.log(_SPAN) / pairs))


def waves(positions: int, width: int) -> Tensor:
    """Sine and cosine of each wave side by side, scaled to a mean square of 1: [positions, width]."""
    angles = torch.arange(positions)[:, None] * wave_rates(width)
    return math.sqrt(2) * torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)[:, :width]


def rotation(rates: Tensor, shift: int) -> Tensor:
    """The matrix that takes the waves of a position to those `shift` positions on: [2 * rates, 2 * rates]."""
    matrix = torch.zeros(2 * len(rates), 2 * len(rates))
    sines = torch.arange(0, len(matrix), 2)
    cosines = sines + 1
    matrix[sines, sines] = matrix[cosines, cosines] = torch.cos(rates * shift)
    matrix[sines, cosines] = torch.sin(rates * shift)
    matrix[cosines, sines] = -torch.sin(rates * shift)
    return matrix
