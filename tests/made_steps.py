"""One step of pre-training cut up in any way, over micro-batches and ranks, and what it leaves in the parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from bertsmith.base.layout import Layout, ranges
from bertsmith.batches.packing import PretrainBatch
from bertsmith.model.pretraining import PretrainingModel
from bertsmith.training.parallel import replicate, shard, whole
from bertsmith.training.pretraining.objective import Pretraining
from bertsmith.training.step import StepSums, train_step
from made_pretraining import batch_of, fresh_model

CPU = torch.device("cpu")
MODES = ("replicate", "shard")
LENGTHS = [9, 30, 17, 5, 24, 12, 8, 21, 3, 16, 28, 7, 11, 19, 6, 26]
# Two rows of token types are on two ranks of four; T is never a width of the model.
SHAPE = {
    "vocab_size": 301,
    "hidden_size": 20,
    "num_hidden_layers": 2,
    "intermediate_size": 28,
    "max_position_embeddings": 32,
}


# Operators that hand a value of the device to the host, or whose result has a shape that the host must wait for.
_ASKING = {"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::masked_select", "aten::is_nonzero"}
_ASKING |= {"aten::_unique2", "aten::unique_dim", "aten::equal", "aten::bincount"}


class Operators(TorchDispatchMode):
    """How often each operator runs, by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Under any other mode PyTorch runs no compiled graph."""
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.name().split(".")[0]] += 1
        return func(*args, **(kwargs or {}))

    @property
    def asked(self) -> int:
        """How many of them had the host wait for its device."""
        return sum(self.counts[name] for name in _ASKING)


class PlainSgd(torch.optim.SGD):
    """Without loss scale or clipping: our own optimizers are for fp32 masters, and scale gradients where they lie."""

    def begin_step(self, labels: int) -> None:
        self.zero_grad(set_to_none=True)

    def scaled(self, loss: Tensor) -> Tensor:
        return loss


def part_of(batch: PretrainBatch, sequences: Sequence[int]) -> PretrainBatch:
    """The micro-batch of some sequences of a batch; of none it is empty."""
    chosen = np.asarray(sequences, dtype=np.int64)
    lengths = batch.layout.lengths[chosen]
    slots = ranges(batch.layout.first_slots[chosen], lengths)
    place = np.full(batch.layout.tokens, -1)
    place[slots] = np.arange(len(slots))
    there = place[batch.masked_positions] >= 0
    return PretrainBatch(
        batch.input_ids[slots],
        batch.token_type_ids[slots],
        batch.position_ids[slots],
        Layout.from_lengths(lengths),
        place[batch.masked_positions][there],
        batch.masked_labels[there],
        batch.next_sentence_labels[chosen],
    )


def dealt(ranks: int, accumulation: int) -> list[list[list[int]]]:
    """Sequences by rank and micro-batch: uneven, and with an empty micro-batch on the last of several ranks."""
    bins = [list(range(number, len(LENGTHS), ranks * accumulation)) for number in range(ranks * accumulation)]
    if len(bins) > 1:
        bins[0] += bins.pop()
        bins.append([])
    return [bins[rank * accumulation : (rank + 1) * accumulation] for rank in range(ranks)]


def model_for(mode: str, dtype: torch.dtype = torch.float32, *, seed: int = 2, **settings: object) -> PretrainingModel:
    """A fresh model, shared between the ranks in a mode ("" leaves it alone). settings: compute, dropout, sums."""
    sums, compute = settings.pop("sums", None), settings.pop("compute", None)
    model = fresh_model(compute, deviation=0.1, seed=seed, **settings, **SHAPE).to(dtype)
    if mode == "replicate":
        replicate(model, sums)
    elif mode == "shard":
        shard(model, model.encoder.layers, compute, sums)
    return model


def take_step(model: PretrainingModel, optimizer: torch.optim.Optimizer, parts: list[list[int]]) -> StepSums:
    """A step of the whole batch, of which this rank has these sequences in micro-batches."""
    batch = batch_of(LENGTHS, seed=5)
    counts = {"masked": len(batch.masked_labels), "next_sentence": len(LENGTHS)}
    micro_batches = [part_of(batch, each) for each in parts]
    return train_step(Pretraining(model, CPU), optimizer, micro_batches, counts, CPU)


def gradients(model: PretrainingModel) -> dict[str, Tensor]:
    """The whole gradients, by name; all ranks must call it."""
    return {name: whole(each.grad).clone() for name, each in model.named_parameters()}


def weights_of(model: PretrainingModel) -> dict[str, Tensor]:
    """The whole weights, by name; all ranks must call it."""
    return {name: whole(each.detach()).clone() for name, each in model.named_parameters()}


def check_close(found: dict[str, Tensor], expected: dict[str, Tensor], close: float) -> None:
    """By tensor, relative to its size. A key's bias has no gradient in exact arithmetic, so it is held to the size of
    all together."""
    size = max(float(each.norm()) for each in expected.values())
    assert found.keys() == expected.keys()
    for name, each in expected.items():
        assert float((found[name] - each).norm()) <= close * max(float(each.norm()), 1e-3 * size), name
