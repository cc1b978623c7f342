"""What an encoder computes on its way, recorded while it runs: hidden states, and queries, keys and values.

Legend: T token slots, H hidden width.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor, nn

from bertsmith.model.encoder import Encoder
from bertsmith.model.layers import Attention


@dataclass
class States:
    """hidden: the output of each layer that was asked for, [T, H]; 0 is the embeddings. qkv: the queries, keys and
    values of each that was asked for, [T, 3, H], numbered from 1."""

    hidden: dict[int, Tensor] = field(default_factory=dict)
    qkv: dict[int, Tensor] = field(default_factory=dict)


@contextmanager
def recorded(encoder: Encoder, layers: Collection[int], relations: Collection[int] = ()) -> Iterator[States]:
    """Fills the states of `layers`, and the queries, keys and values of `relations`, when the encoder runs within the
    block, with their graph."""
    found = States()
    with ExitStack() as ends:
        for number in layers:
            module = encoder.layers[number - 1] if number else encoder.embeddings
            ends.callback(module.register_forward_hook(partial(_keep_output, found, number)).remove)
        for number in relations:
            attention = encoder.layers[number - 1].attention
            assert isinstance(attention, Attention)
            attention.record = partial(found.qkv.__setitem__, number)
            ends.callback(setattr, attention, "record", None)
        yield found


def _keep_output(states: States, number: int, module: nn.Module, given: Any, output: Any) -> None:
    states.hidden[number] = output[0] if isinstance(output, tuple) else output
