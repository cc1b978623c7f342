"""How many tokens a micro-batch takes where a recipe leaves that to the device: as many as it has memory for."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch

from bertsmith.base import ranks
from bertsmith.base.errors import BertsmithError, ran_out_of_memory
from bertsmith.base.layout import Layout
from bertsmith.base.log import log_choice, say
from bertsmith.base.ranks.together import together
from bertsmith.batches.packing import PretrainBatch
from bertsmith.batches.shapes import TILE, tiles
from bertsmith.training.objective import mean_loss
from bertsmith.training.pretraining.objective import Pretraining

# Beside weights and gradients an update has two moments of each weight, and its own copy of the largest of them.
_OF_THE_OPTIMIZER = 3
# Of a GPU's memory, for what it cuts into pieces that are too small.
_SPARE = 0.05
# oneDNN says no more than this where a product or its scratch memory cannot be allocated.
_FAILED_PRODUCTS = ("could not create a primitive", "could not execute a primitive")


def fitting_tokens(objective: Pretraining, longest: int, masked_share: float, most: int) -> int:
    """The most tokens of a micro-batch for which a forward and a backward pass fit the memory of every rank's device.

    Called by all ranks, before weights are shared and moments made. longest: tokens of the longest sequence.
    masked_share: of them to predict, at most. most: more than which is of no use. Raises BertsmithError where not even
    the longest sequence fits.
    """
    least = tiles(longest)
    most = max(least, tiles(most))

    def fits(tokens: int) -> bool:
        return _fits(objective, tokens, longest, masked_share)

    with torch.random.fork_rng([objective.device] if objective.device.type == "cuda" else []):  # for dropout
        tokens = min(ranks.gathered(together(lambda: largest(fits, least, most))))
    log_choice("micro-batches", f"{tokens:,} tokens", "so many were tried and fit the memory of the device")
    return tokens


def largest(fits: Callable[[int], bool], least: int, most: int) -> int:
    """Between `least` and `most` a number of tokens that fits, within an eighth of the largest that does."""
    tokens, too_many = most, 0
    while not fits(tokens):
        if tokens == least:
            what = f"not even one sequence of {least:,} tokens fits the memory of the device"
            fix = "use a smaller model, shorter sequences, gradient_checkpointing, or another device"
            raise BertsmithError(what, "micro_batch_tokens: auto", fix)
        tokens, too_many = max(least, tokens // 2 // TILE * TILE), tokens
    while too_many - tokens > max(TILE, tokens // 8):
        middle = tiles((tokens + too_many) / 2)
        if middle < too_many and fits(middle):
            tokens = middle
        else:
            too_many = min(middle, too_many - TILE)
    return tokens


def _fits(objective: Pretraining, tokens: int, longest: int, masked_share: float) -> bool:
    """Whether a micro-batch of the longest sequences fits beside what the optimizer will keep."""
    model, where = objective.model, objective.device
    try:
        model.train()  # one that was loaded is not
        # Filled, because a CPU's memory is taken when it is written to.
        held = [torch.full((_OF_THE_OPTIMIZER * sum(each.numel() for each in model.parameters()),), 1.0, device=where)]
        if where.type == "cuda":
            spare = int(_SPARE * torch.cuda.mem_get_info(where)[1])
            held.append(torch.empty(spare, dtype=torch.uint8, device=where))
        forward = objective.forward(_made(tokens, longest, masked_share), where)
        mean_loss(list(forward.losses.values()), [tokens] * len(forward.losses)).backward()  # type: ignore[no-untyped-call]
        return True
    except (RuntimeError, MemoryError) as error:
        message = str(error) or "no memory"
        if not ran_out_of_memory(error) and message not in _FAILED_PRODUCTS:
            raise
        say(f"micro-batches: {tokens:,} tokens do not fit: {message.splitlines()[0]}")
        return False
    finally:
        model.zero_grad(set_to_none=True)
        if where.type == "cuda":
            torch.cuda.empty_cache()


def _made(tokens: int, longest: int, masked_share: float) -> PretrainBatch:
    """A micro-batch of sequences of the longest kind, with nothing in them."""
    count = tokens // longest
    layout = Layout.from_lengths(np.array([longest] * count + [tokens - count * longest] * (tokens > count * longest)))
    masked = np.linspace(0, tokens - 1, max(1, math.ceil(masked_share * tokens)), dtype=np.int64)
    nothing = np.zeros(tokens, np.int64)
    return PretrainBatch(
        nothing, nothing, layout.positions, layout, masked, np.zeros_like(masked), np.zeros(layout.sequences, np.int64)
    )
