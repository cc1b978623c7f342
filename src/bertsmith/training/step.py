"""One optimizer step: micro-batches forward and backward, gradients summed over ranks, one update.

Losses leave the model as sums. Each is divided at once by the count of the whole step over all ranks and micro-batches,
so the gradient does not depend on how the step was cut up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from bertsmith.base.ranks import rank, sum_over_ranks, world_size
from bertsmith.batches.packing import PretrainBatch, fill
from bertsmith.model.attention.packed import Packed
from bertsmith.model.losses import LossSum
from bertsmith.model.pretraining import PretrainingModel, PretrainInputs
from bertsmith.optim.clipped import ClippedOptimizer
from bertsmith.optim.norms import tensor_norms


@dataclass
class StepSums:
    """What a step adds up over its micro-batches on this rank: `figures_of` on the device, three numbers on the host.

    slots: tokens and what fills batches up. attention_places: slots that attention worked on, padding included.
    faulty: of `sum_gradients`.
    """

    figures: Tensor
    tokens: int = 0
    slots: int = 0
    attention_places: int = 0
    faulty: Tensor | None = None

    @classmethod
    def zero(cls, device: torch.device) -> StepSums:
        return cls(torch.zeros(6, device=device))


def figures_of(masked: LossSum, pairs: LossSum) -> Tensor:
    """Loss, count and right guesses of the masked words, then of the pairs, without their graph: fp32[6]."""
    figures = (masked.loss, masked.count, masked.right, pairs.loss, pairs.count, pairs.right)
    return torch.stack([figure.detach().float() for figure in figures])


def to_inputs(batch: PretrainBatch, device: torch.device) -> PretrainInputs:
    """A packed batch of numpy arrays as the model's tensors, filled up to a round size on a CPU."""
    if device.type == "cpu":
        batch = fill(batch)

    def tensor(name: str) -> Tensor:
        return torch.from_numpy(getattr(batch, name)).to(device, torch.int64, non_blocking=True)

    return PretrainInputs(
        input_ids=tensor("input_ids"),
        token_type_ids=tensor("token_type_ids"),
        position_ids=tensor("position_ids"),
        packed=Packed(batch.layout, device),
        masked_positions=tensor("masked_positions"),
        masked_labels=tensor("masked_labels"),
        next_sentence_labels=tensor("next_sentence_labels"),
    )


def add_losses(
    model: PretrainingModel, batch: PretrainBatch, device: torch.device, sums: StepSums
) -> tuple[Tensor, Tensor]:
    """Runs a micro-batch forward, adds its figures to `sums`, and returns its two summed losses with their graphs."""
    inputs = to_inputs(batch, device)
    masked, next_sentence = model.losses(inputs)
    sums.figures += figures_of(masked, next_sentence)
    sums.tokens += batch.tokens
    sums.slots += batch.layout.tokens
    sums.attention_places += inputs.packed.attended_slots
    return masked.loss, next_sentence.loss


class Compiled(Protocol):
    """A model and its optimizer, run compiled: `training.compiled.CompiledStep`."""

    def add_losses(self, batch: PretrainBatch, counts: tuple[int, int], sums: StepSums) -> Tensor:
        """The micro-batch's share of the step's loss, with its graph; adds its figures to `sums`."""

    def held_out(self, batch: PretrainBatch, letters: Tensor) -> Tensor:
        """The figures of an evaluation."""

    def update(self) -> None:
        """The optimizer's step."""


def train_step(
    model: PretrainingModel,
    optimizer: ClippedOptimizer,
    micro_batches: Sequence[PretrainBatch],
    counts: tuple[int, int],
    device: torch.device,
    compiled: Compiled | None = None,
) -> StepSums:
    """One update from `micro_batches`, this rank's share of a step.

    counts: masked words and sequences of the whole step, over all ranks. The learning rate is the optimizer's.
    compiled: runs `model` and `optimizer`, where they are compiled.
    """
    masked_words, sequences = max(counts[0], 1), max(counts[1], 1)
    optimizer.zero_grad(set_to_none=True)
    sums = StepSums.zero(device)
    for batch in micro_batches:
        if compiled is None:
            masked_loss, next_sentence_loss = add_losses(model, batch, device, sums)
            loss = masked_loss / masked_words + next_sentence_loss / sequences
        else:
            loss = compiled.add_losses(batch, (masked_words, sequences), sums)
        optimizer.scaled(loss).backward()  # type: ignore[no-untyped-call]
    sums.faulty = sum_gradients(model)
    if compiled is None:
        optimizer.step()
    else:
        compiled.update()
    return sums


def sum_gradients(model: torch.nn.Module) -> Tensor | None:
    """Adds up the fp32 gradients of all ranks, in one flat buffer; every rank then holds the same sums.

    Returns which ranks' own gradients were not finite, fp32[ranks], 1 for each; None where there is one rank.
    """
    if world_size() == 1:
        return None
    # A rank without instances in this step has no gradients, and must still take its part with zeros.
    for parameter in model.parameters():
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    parts = [each.reshape(-1) for each in gradients]
    faulty = torch.zeros(world_size(), dtype=parts[0].dtype, device=parts[0].device)
    faulty[rank()] = ~torch.isfinite(tensor_norms(parts)).all()
    flat = sum_over_ranks(torch.cat([*parts, faulty]))
    *sums, faulty = torch.split(flat, [each.numel() for each in (*parts, faulty)])
    for gradient, part in zip(gradients, sums, strict=True):
        gradient.copy_(part.view_as(gradient))
    return faulty
