"""Fresh weights, as Google's BERT draws them."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bertsmith.base.streams import stream_key

CUT_NORMAL_DEVIATION = 0.8796
"""The standard deviation that a standard normal distribution keeps when it is cut at two."""


@dataclass(frozen=True)
class FreshEmbeddings:
    """deviation: of all three kinds of embeddings. sinusoid: positions are sine waves (Vaswani et al., 2017) of it."""

    deviation: float
    sinusoid: bool = False


def initialise(
    module: nn.Module, standard_deviation: float, seed: int, embeddings: FreshEmbeddings | None = None
) -> None:
    """Weights and embeddings from a normal distribution cut at two standard deviations, biases 0, LayerNorm 1 and 0.

    Every parameter has a stream of its own, keyed by its name, so that a new head never changes the encoder's draw.
    embeddings: where they are to differ from BERT's.
    """
    embeddings = embeddings or FreshEmbeddings(standard_deviation)
    with torch.no_grad():
        for name, child in module.named_modules():
            for kind, parameter in child.named_parameters(recurse=False):
                if isinstance(child, nn.LayerNorm):
                    parameter.fill_(1.0 if kind == "weight" else 0.0)
                elif kind == "bias":
                    parameter.zero_()
                else:
                    generator = torch.Generator().manual_seed(stream_key(seed, "weights", f"{name}.{kind}") >> 1)
                    deviation = embeddings.deviation if isinstance(child, nn.Embedding) else standard_deviation
                    fresh = torch.empty(parameter.shape)
                    nn.init.trunc_normal_(fresh, 0.0, deviation, -2 * deviation, 2 * deviation, generator=generator)
                    if embeddings.sinusoid and name.endswith("embeddings.position"):
                        fresh = deviation * sinusoids(*parameter.shape)
                    parameter.copy_(fresh)


def sinusoids(positions: int, width: int) -> Tensor:
    """Sine and cosine waves of `width` / 2 frequencies, scaled to a mean square of 1: [positions, width]."""
    rates = torch.exp(torch.arange(0, width, 2) * (-math.log(10_000) / width))
    angles = torch.arange(positions)[:, None] * rates
    waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
    return math.sqrt(2) * waves[:, :width]
