"""Fresh weights, as Google's BERT draws them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from bertsmith.base.streams import stream_key

CUT_NORMAL_DEVIATION = 0.8796
"""The standard deviation that a standard normal distribution keeps when it is cut at two."""


def initialise(
    module: nn.Module, standard_deviation: float, seed: int, embedding_deviation: float | None = None
) -> None:
    """Weights and embeddings from a normal distribution cut at two standard deviations, biases 0, LayerNorm 1 and 0.

    Every parameter has a stream of its own, keyed by its name, so that a new head never changes the encoder's draw.
    embedding_deviation: of the three kinds of embeddings, where it is to differ.
    """
    wide = standard_deviation if embedding_deviation is None else embedding_deviation
    with torch.no_grad():
        for name, child in module.named_modules():
            for kind, parameter in child.named_parameters(recurse=False):
                if isinstance(child, nn.LayerNorm):
                    parameter.fill_(1.0 if kind == "weight" else 0.0)
                elif kind == "bias":
                    parameter.zero_()
                else:
                    generator = torch.Generator().manual_seed(stream_key(seed, "weights", f"{name}.{kind}") >> 1)
                    deviation = wide if isinstance(child, nn.Embedding) else standard_deviation
                    parameter.copy_(_cut_normal(parameter.shape, deviation, generator))


def _cut_normal(shape: torch.Size, deviation: float, generator: torch.Generator) -> torch.Tensor:
    """Quantiles of the cut normal distribution at uniform draws, one draw a value.

    To the bit what `nn.init.trunc_normal_` of torch 2.11 gives. From 2.12 on that draws whole tensors again until no
    value lies outside: other weights by the same seed, in six times the time.
    """
    share = math.erf(math.sqrt(2.0))  # of a normal distribution within two standard deviations
    empty = torch.empty(shape, dtype=torch.float32, device=generator.device)
    uniform = empty.uniform_(-share, share, generator=generator)
    return uniform.erfinv_().mul_(deviation * math.sqrt(2.0)).clamp_(-2 * deviation, 2 * deviation)


@contextmanager
def shapes_only() -> Iterator[None]:
    """Modules that are built inside have the shapes of their parameters and no values, on the device "meta"."""
    with torch.device("meta"), _NothingDrawn():
        yield


class _NothingDrawn(TorchFunctionMode):
    """Leaves out the draws of `nn.Embedding`, for which PyTorch imports its compiler on "meta": that takes seconds."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func is nn.init.normal_:
            return args[0] if args else given["tensor"]
        return func(*args, **given)
